-- From version 9: what trainers' reports say, for lists. Jobs completed before have none.

CREATE TABLE results (              -- what the report of a completed attempt says; the report lies beside its bundle
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  report  TEXT NOT NULL,            -- SHA-256 of its bytes
  bytes   INTEGER NOT NULL CHECK (bytes >= 0),
  figures TEXT NOT NULL,            -- in short, as JSON
  test    TEXT,                     -- equal where two models were judged on the same windows; NULL: not known
  twin    TEXT NOT NULL,            -- equal for jobs that differ in their mode alone
  auroc      REAL,
  auroc_low  REAL,                  -- its 95 % interval; NULL: it has none
  auroc_high REAL,
  seal INTEGER,
  PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX results_ranked ON results (test, -coalesce(auroc, -1), job_id);  -- the best first, without a figure last
CREATE INDEX results_by_twin ON results (twin);
INSERT INTO seals (tbl, n, unsealed) VALUES ('results', 0, 0);
