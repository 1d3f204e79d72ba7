-- From version 14 to 15: changes of watched hosts, and notices of them. A CHECK cannot be changed, so notices are made anew.

CREATE TABLE notices_new (
  seq     INTEGER PRIMARY KEY,
  at      REAL NOT NULL,
  kind    TEXT NOT NULL CHECK (kind IN
    ('failure', 'plan_done', 'quarantine', 'disk', 'certificate', 'incident', 'change')),
  subject TEXT NOT NULL,
  sentence TEXT NOT NULL,
  event   INTEGER,
  job_id  TEXT,
  lasting INTEGER NOT NULL DEFAULT 0 CHECK (lasting IN (0, 1)),
  over_at REAL,
  seal INTEGER
) STRICT;
INSERT INTO notices_new SELECT seq, at, kind, subject, sentence, event, job_id, lasting, over_at, seal FROM notices;
DROP TABLE notices;
ALTER TABLE notices_new RENAME TO notices;
CREATE INDEX notices_lasting ON notices (kind, subject) WHERE lasting = 1 AND over_at IS NULL;

CREATE TABLE host_changes (
  seq        INTEGER PRIMARY KEY,
  host       TEXT NOT NULL,
  id         TEXT NOT NULL,
  checkpoint TEXT NOT NULL,
  model      TEXT NOT NULL,
  since      REAL,
  noticed_at REAL,
  at_once    INTEGER NOT NULL CHECK (at_once IN (0, 1)),
  channels   TEXT NOT NULL,
  more_channels INTEGER NOT NULL CHECK (more_channels >= 0),
  told_at    REAL NOT NULL,
  heard_at   REAL NOT NULL,
  ended      TEXT CHECK (ended IN ('confirmed', 'reference', 'later')),
  ended_at   REAL,
  seal INTEGER,
  CHECK ((ended IS NULL) = (ended_at IS NULL))
) STRICT;
CREATE UNIQUE INDEX host_changes_once ON host_changes (host, id);
CREATE INDEX host_changes_by_host ON host_changes (host, seq);
CREATE INDEX host_changes_standing ON host_changes (host, checkpoint) WHERE ended IS NULL;

INSERT INTO seals (tbl, n, unsealed) VALUES ('host_changes', 0, 0);
