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
