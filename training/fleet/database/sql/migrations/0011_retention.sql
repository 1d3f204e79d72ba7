-- From version 10 to 11: what the plan's [retention] took away.

CREATE TABLE removals (
  seq     INTEGER PRIMARY KEY,
  at      REAL NOT NULL,
  what    TEXT NOT NULL CHECK (what IN ('bundle', 'log', 'curve', 'events', 'dataset')),
  subject TEXT NOT NULL,
  number  INTEGER NOT NULL DEFAULT 0,
  size    INTEGER NOT NULL,
  why     TEXT NOT NULL,
  newest  REAL,
  done_at REAL,
  back_at REAL,
  seal INTEGER
) STRICT;
CREATE UNIQUE INDEX removals_standing ON removals (what, subject, number) WHERE back_at IS NULL;
CREATE INDEX removals_unfinished ON removals (what) WHERE done_at IS NULL AND back_at IS NULL;
INSERT INTO seals (tbl, n, unsealed) VALUES ('removals', 0, 0);

-- NULL: to be read off the curve, as long as that is there.
ALTER TABLE attempts ADD COLUMN figure REAL;
