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
