-- From version 18 to 19: attempts that are asked to give way to urgent jobs.

ALTER TABLE attempts ADD COLUMN resumable INTEGER NOT NULL DEFAULT 0 CHECK (resumable IN (0, 1));
ALTER TABLE attempts ADD COLUMN gives_way_to TEXT;
ALTER TABLE attempts ADD COLUMN gives_way_number INTEGER;
ALTER TABLE attempts ADD COLUMN gives_way_at REAL
  CHECK ((gives_way_at IS NULL) = (gives_way_to IS NULL) AND (gives_way_number IS NULL) = (gives_way_to IS NULL));
CREATE INDEX attempts_giving_way ON attempts (gives_way_at) WHERE gives_way_to IS NOT NULL;
