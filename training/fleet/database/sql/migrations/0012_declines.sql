-- From version 11 to 12: hosts that wait because another will have a job done sooner.

CREATE TABLE declines (
  seq        INTEGER PRIMARY KEY,
  host       TEXT NOT NULL,
  kind       TEXT NOT NULL,
  job_id     TEXT NOT NULL,
  by_host    TEXT NOT NULL,
  at         REAL NOT NULL,
  begins_at  REAL NOT NULL,
  ends_at    REAL NOT NULL,
  here_until REAL NOT NULL,
  open_at    REAL NOT NULL,
  ended_at   REAL,
  seal INTEGER
) STRICT;
CREATE UNIQUE INDEX declines_open ON declines (host, kind) WHERE ended_at IS NULL;
CREATE INDEX declines_by_time ON declines (at);
INSERT INTO seals (tbl, n, unsealed) VALUES ('declines', 0, 0);
