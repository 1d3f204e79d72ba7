-- From version 13 to 14: watched hosts and their incidents. CHECKs cannot be changed, so three tables are made anew.

CREATE TABLE certificates_new (
  fingerprint TEXT PRIMARY KEY,
  role        TEXT NOT NULL CHECK (role IN ('host', 'operator', 'reader', 'watcher')),
  name        TEXT NOT NULL,
  issued_at   REAL NOT NULL,
  expires_at  REAL NOT NULL,
  revoked_at  REAL,
  seal INTEGER
) STRICT;
INSERT INTO certificates_new SELECT fingerprint, role, name, issued_at, expires_at, revoked_at, seal FROM certificates;
DROP TABLE certificates;
ALTER TABLE certificates_new RENAME TO certificates;

CREATE TABLE invitations_new (
  code_sha256 TEXT PRIMARY KEY,
  role        TEXT NOT NULL CHECK (role IN ('host', 'operator', 'reader', 'watcher')),
  name        TEXT NOT NULL,
  created_at  REAL NOT NULL,
  expires_at  REAL NOT NULL,
  used_by     TEXT,
  seal INTEGER
) STRICT;
INSERT INTO invitations_new SELECT code_sha256, role, name, created_at, expires_at, used_by, seal FROM invitations;
DROP TABLE invitations;
ALTER TABLE invitations_new RENAME TO invitations;

CREATE TABLE notices_new (
  seq     INTEGER PRIMARY KEY,
  at      REAL NOT NULL,
  kind    TEXT NOT NULL CHECK (kind IN ('failure', 'plan_done', 'quarantine', 'disk', 'certificate', 'incident')),
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

CREATE TABLE watches (
  host       TEXT NOT NULL,
  checkpoint TEXT NOT NULL,
  model      TEXT NOT NULL,
  since      REAL NOT NULL,
  heard_at   REAL NOT NULL,
  every_s    REAL NOT NULL,
  seal INTEGER,
  PRIMARY KEY (host, checkpoint)
) STRICT, WITHOUT ROWID;

CREATE TABLE incidents (
  seq        INTEGER PRIMARY KEY,
  host       TEXT NOT NULL,
  id         TEXT NOT NULL,
  checkpoint TEXT NOT NULL,
  model      TEXT NOT NULL,
  rule       TEXT NOT NULL,
  began_at   REAL NOT NULL,
  raised_at  REAL NOT NULL,
  last_alarm_at REAL NOT NULL,
  over       INTEGER NOT NULL CHECK (over IN (0, 1)),
  alarms     INTEGER NOT NULL CHECK (alarms >= 0),
  peak       REAL NOT NULL,
  threshold  REAL NOT NULL,
  why        TEXT NOT NULL,
  told_at    REAL NOT NULL,
  heard_at   REAL NOT NULL,
  verdict    TEXT CHECK (verdict IN ('confirmed', 'false')),
  judged_by  TEXT,
  judged_at  REAL,
  seal INTEGER,
  CHECK ((verdict IS NULL) = (judged_by IS NULL)),
  CHECK ((verdict IS NULL) = (judged_at IS NULL))
) STRICT;
CREATE UNIQUE INDEX incidents_once ON incidents (host, id);
CREATE INDEX incidents_by_host ON incidents (host, seq);
CREATE INDEX incidents_open ON incidents (host) WHERE over = 0;

INSERT INTO seals (tbl, n, unsealed) VALUES ('incidents', 0, 0), ('watches', 0, 0);
