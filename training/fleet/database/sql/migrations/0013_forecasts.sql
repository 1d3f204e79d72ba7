-- From version 12 to 13: what was foretold of jobs.

CREATE TABLE forecasts (
  seq        INTEGER PRIMARY KEY,
  job_id     TEXT NOT NULL,
  generation INTEGER NOT NULL,
  attempt    INTEGER NOT NULL CHECK (attempt >= 0),
  at         REAL NOT NULL,
  host       TEXT NOT NULL,
  ends_at    REAL NOT NULL,
  low_at     REAL NOT NULL,
  high_at    REAL NOT NULL,
  seal INTEGER
) STRICT;
CREATE UNIQUE INDEX forecasts_once ON forecasts (job_id, generation, attempt);
INSERT INTO seals (tbl, n, unsealed) VALUES ('forecasts', 0, 0);
