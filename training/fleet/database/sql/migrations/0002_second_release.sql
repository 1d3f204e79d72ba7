-- From version 1 to 2: what databases of the first release lack.
--
-- One file for each version that was released, numbered by the version it leads to. All that are missing run in one
-- transaction, after a copy of the file was laid beside it; they see foreign keys switched off and checked at the end.
-- Until a version is released, its file is edited together with schema_sqlite.sql, and a released one is never edited
-- again. tests/test_fleet_migration.py migrates a file of the first release and says what differs from a new one.

CREATE TABLE audit (
  seq     INTEGER PRIMARY KEY,
  at      REAL NOT NULL,
  who     TEXT NOT NULL,
  act     TEXT NOT NULL,
  subject TEXT NOT NULL,
  before  TEXT,
  after   TEXT,
  digest  TEXT NOT NULL
) STRICT;

ALTER TABLE jobs ADD COLUMN short_runs INTEGER NOT NULL DEFAULT 0 CHECK (short_runs >= 0);
ALTER TABLE jobs ADD COLUMN ram_above_gib REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN vram_above_gib REAL NOT NULL DEFAULT 0;

ALTER TABLE attempts ADD COLUMN lived_s REAL;
ALTER TABLE attempts ADD COLUMN out_of_memory TEXT CHECK (out_of_memory IN ('ram', 'vram'));
ALTER TABLE attempts ADD COLUMN crashed INTEGER NOT NULL DEFAULT 0 CHECK (crashed IN (0, 1));
ALTER TABLE attempts ADD COLUMN pardoned INTEGER NOT NULL DEFAULT 0 CHECK (pardoned IN (0, 1));

CREATE TABLE deaths (
  seq     INTEGER PRIMARY KEY,
  host    TEXT NOT NULL,
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  FOREIGN KEY (job_id, attempt) REFERENCES attempts (job_id, attempt)
) STRICT;
CREATE INDEX deaths_by_host ON deaths (host);

CREATE TABLE quarantines (
  seq      INTEGER PRIMARY KEY,
  host     TEXT NOT NULL,
  since    REAL NOT NULL,
  cause    TEXT NOT NULL CHECK (cause IN ('deaths', 'self_test')),
  reason   TEXT NOT NULL,
  ended_at REAL,
  ended_by TEXT,
  CHECK ((ended_at IS NULL) = (ended_by IS NULL))
) STRICT;
CREATE UNIQUE INDEX quarantines_one_open ON quarantines (host) WHERE ended_at IS NULL;
