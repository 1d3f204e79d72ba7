-- From version 5 to 6.

-- Curves of attempts that printed before begin with what their workers still bring.
CREATE TABLE curve_points (
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  epoch   INTEGER NOT NULL CHECK (epoch >= 0),
  loss    REAL,
  metric  REAL,
  seconds REAL CHECK (seconds >= 0),
  line    INTEGER,
  seal INTEGER,
  PRIMARY KEY (job_id, attempt, epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage_samples (
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  seq     INTEGER NOT NULL,
  seconds REAL NOT NULL,
  cpu     REAL,
  memory_bytes     INTEGER,
  gpu     REAL,
  gpu_memory_bytes INTEGER,
  seal INTEGER,
  PRIMARY KEY (job_id, attempt, seq)
) STRICT, WITHOUT ROWID;

INSERT INTO seals (tbl, n, unsealed) VALUES ('curve_points', 0, 0), ('usage_samples', 0, 0);

-- How much attempts of before printed in all, nobody said.
ALTER TABLE attempts ADD COLUMN log_total INTEGER;
