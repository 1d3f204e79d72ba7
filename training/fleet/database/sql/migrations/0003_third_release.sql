-- From version 2 to 3.

-- What attempts of before were granted is not known: the plan may have been edited while they ran.
ALTER TABLE attempts ADD COLUMN granted TEXT;

CREATE TABLE identity (
  one         INTEGER PRIMARY KEY CHECK (one = 1),
  database_id TEXT NOT NULL CHECK (length(database_id) = 32)
) STRICT;
INSERT INTO identity (one, database_id) VALUES (1, lower(hex(randomblob(16))));

ALTER TABLE hosts ADD COLUMN set_aside TEXT;

CREATE TABLE plan_datasets (
  name       TEXT PRIMARY KEY,
  dataset_id TEXT NOT NULL
) STRICT;

-- What models of before were trained on stands in their reports at most.
ALTER TABLE attempts ADD COLUMN data_digest TEXT;
ALTER TABLE attempts ADD COLUMN code_digest TEXT;
ALTER TABLE attempts ADD COLUMN training_commit TEXT;

-- Rows of before have no checksum until they change.
ALTER TABLE artifacts ADD COLUMN seal INTEGER;
ALTER TABLE attempts ADD COLUMN seal INTEGER;
ALTER TABLE certificates ADD COLUMN seal INTEGER;
ALTER TABLE classes ADD COLUMN seal INTEGER;
ALTER TABLE deaths ADD COLUMN seal INTEGER;
ALTER TABLE events ADD COLUMN seal INTEGER;
ALTER TABLE hosts ADD COLUMN seal INTEGER;
ALTER TABLE invitations ADD COLUMN seal INTEGER;
ALTER TABLE jobs ADD COLUMN seal INTEGER;
ALTER TABLE log_chunks ADD COLUMN seal INTEGER;
ALTER TABLE plan_datasets ADD COLUMN seal INTEGER;
ALTER TABLE quarantines ADD COLUMN seal INTEGER;
ALTER TABLE tokens ADD COLUMN seal INTEGER;
CREATE TABLE seals (
  tbl      TEXT PRIMARY KEY,
  n        INTEGER NOT NULL,
  unsealed INTEGER NOT NULL
) STRICT;
INSERT INTO seals (tbl, n, unsealed)
SELECT 'artifacts', count(*), count(*) FROM artifacts
UNION ALL SELECT 'attempts', count(*), count(*) FROM attempts
UNION ALL SELECT 'audit', count(*), 0 FROM audit
UNION ALL SELECT 'certificates', count(*), count(*) FROM certificates
UNION ALL SELECT 'classes', count(*), count(*) FROM classes
UNION ALL SELECT 'deaths', count(*), count(*) FROM deaths
UNION ALL SELECT 'events', count(*), count(*) FROM events
UNION ALL SELECT 'hosts', count(*), count(*) FROM hosts
UNION ALL SELECT 'invitations', count(*), count(*) FROM invitations
UNION ALL SELECT 'jobs', count(*), count(*) FROM jobs
UNION ALL SELECT 'log_chunks', count(*), count(*) FROM log_chunks
UNION ALL SELECT 'plan_datasets', count(*), count(*) FROM plan_datasets
UNION ALL SELECT 'quarantines', count(*), count(*) FROM quarantines
UNION ALL SELECT 'tokens', count(*), count(*) FROM tokens;

ALTER TABLE jobs ADD COLUMN held_by TEXT;
ALTER TABLE jobs ADD COLUMN held_at REAL CHECK ((held_at IS NULL) = (held_by IS NULL));
DROP INDEX jobs_ready;
CREATE INDEX jobs_ready ON jobs (class_id, avoid_host, priority DESC, claimable_at, seq)
  WHERE status = 'pending' AND held_at IS NULL;
CREATE INDEX jobs_held ON jobs (status) WHERE held_at IS NOT NULL;
