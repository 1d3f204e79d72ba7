-- From version 8 to 9: whole logs, in files of the store.

CREATE TABLE log_files (
  job_id    TEXT NOT NULL,
  attempt   INTEGER NOT NULL,
  first     INTEGER NOT NULL,
  count     INTEGER NOT NULL CHECK (count >= 1),
  raw_bytes INTEGER NOT NULL,
  bytes     INTEGER NOT NULL,
  sha256    TEXT,
  gone      TEXT CHECK (gone IN ('size', 'age', 'worker', 'early', 'lost')),
  gone_at   REAL,
  seal INTEGER,
  PRIMARY KEY (job_id, attempt, first),
  CHECK ((gone IS NULL) = (sha256 IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX log_files_going ON log_files (gone_at) WHERE gone IS NOT NULL AND bytes > 0;

-- The heads of long outputs were forgotten, as were lines that a worker could not keep.
INSERT INTO log_files (job_id, attempt, first, count, raw_bytes, bytes, gone, gone_at)
SELECT job_id, attempt, 0, min(first), 0, 0, 'early', 0.0 FROM log_chunks
GROUP BY job_id, attempt HAVING min(first) > 0;
INSERT INTO seals (tbl, n, unsealed) SELECT 'log_files', count(*), count(*) FROM log_files;
