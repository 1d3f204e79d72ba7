-- From version 6 to 7: notifications. What happened before is no news.

CREATE TABLE notices (              -- what somebody may want to know, written with what it follows from
  seq     INTEGER PRIMARY KEY,
  at      REAL NOT NULL,
  kind    TEXT NOT NULL CHECK (kind IN ('failure', 'plan_done', 'quarantine', 'disk', 'certificate')),
  subject TEXT NOT NULL,            -- a job's name, a host, a certificate's owner
  sentence TEXT NOT NULL,
  event   INTEGER,                  -- the event row that it follows from
  job_id  TEXT,
  lasting INTEGER NOT NULL DEFAULT 0 CHECK (lasting IN (0, 1)),  -- it holds until over_at; told once meanwhile
  over_at REAL,
  seal INTEGER
) STRICT;
CREATE INDEX notices_lasting ON notices (kind, subject) WHERE lasting = 1 AND over_at IS NULL;

CREATE TABLE notify_channels (      -- how far each channel of the plan has got with them
  name    TEXT PRIMARY KEY,
  sent    INTEGER NOT NULL,         -- the last notice that it sent, or need not send
  fixed   INTEGER,                  -- the last notice of the message under way; NULL: none is
  tries   INTEGER NOT NULL DEFAULT 0 CHECK (tries >= 0),
  next_at REAL,
  sent_at REAL,
  error   TEXT,
  seal INTEGER
) STRICT;

CREATE TABLE notice_cursor (        -- one row, from the first look on: the event and the quarantine up to which notices were made
  one         INTEGER PRIMARY KEY CHECK (one = 1),
  events      INTEGER NOT NULL,
  quarantines INTEGER NOT NULL,
  seal INTEGER
) STRICT;
INSERT INTO notice_cursor (one, events, quarantines)
VALUES (1, (SELECT coalesce(max(seq), 0) FROM events), (SELECT coalesce(max(seq), 0) FROM quarantines));

INSERT INTO seals (tbl, n, unsealed) VALUES ('notice_cursor', 1, 1), ('notices', 0, 0), ('notify_channels', 0, 0);
