-- The queue's tables. Portable where it costs nothing: TEXT with CHECK for statuses, JSON as TEXT,
-- epoch seconds as REAL in …_at columns, no triggers. STRICT and the partial indexes are SQLite's. `seal` is the row's
-- checksum, which the adapter lays down (seals.py).

CREATE TABLE identity (             -- one row: which database this is, whatever its file is called and whoever serves it
  one         INTEGER PRIMARY KEY CHECK (one = 1),
  database_id TEXT NOT NULL CHECK (length(database_id) = 32)  -- random; copies of the database keep it
) STRICT;
INSERT INTO identity (one, database_id) VALUES (1, lower(hex(randomblob(16))));

CREATE TABLE classes (              -- one row per distinct form of what jobs need of a host
  class_id INTEGER PRIMARY KEY,
  needs    TEXT NOT NULL UNIQUE,    -- canonical JSON of job.Needs
  seal INTEGER
) STRICT;

CREATE TABLE plan_in_force (        -- at most one row
  one     INTEGER PRIMARY KEY CHECK (one = 1),
  edition INTEGER NOT NULL,         -- rises with every plan
  seal INTEGER
) STRICT;

CREATE TABLE jobs (
  seq              INTEGER PRIMARY KEY,      -- order of arrival
  job_id           TEXT NOT NULL UNIQUE,
  name             TEXT NOT NULL,
  spec             TEXT NOT NULL,            -- the job dict as JSON
  class_id         INTEGER NOT NULL REFERENCES classes (class_id),
  priority         INTEGER NOT NULL,
  status           TEXT NOT NULL CHECK (status IN
                     ('pending', 'claimed', 'running', 'completed', 'failed', 'cancelled')),
  created_at       REAL NOT NULL,
  claimable_at     REAL NOT NULL,            -- when it became (or becomes) claimable; graces count from here
  attempt          INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
  generation       INTEGER NOT NULL DEFAULT 1 CHECK (generation >= 1),
  grants           INTEGER NOT NULL DEFAULT 0 CHECK (grants >= 0),
  trainer_failures INTEGER NOT NULL DEFAULT 0 CHECK (trainer_failures >= 0),
  host_losses      INTEGER NOT NULL DEFAULT 0 CHECK (host_losses >= 0),
  claim_id         TEXT,                     -- of the live attempt, and of no other
  worker_hostname  TEXT,
  claimed_at       REAL,
  heartbeat_at     REAL,                     -- when the live attempt was last heard; what a sweep goes by
  finished_at      REAL,
  artifact_id      TEXT,
  error            TEXT,
  ended_by         TEXT,                     -- of a pending job: ends it at avoid_until unless another host takes it
  failed_by        TEXT CHECK (failed_by IN
                     ('refusal', 'memory', 'failures', 'losses', 'grants', 'crashes')), -- the kind of what ended_by says
  avoid_host       TEXT NOT NULL DEFAULT '', -- a host that lets others go first until avoid_until; '*': all wait
  avoid_until      REAL,
  short_runs       INTEGER NOT NULL DEFAULT 0 CHECK (short_runs >= 0), -- interrupted within moments, in a row
  ram_above_gib    REAL NOT NULL DEFAULT 0,  -- it ran out of memory where there was so much in all …
  vram_above_gib   REAL NOT NULL DEFAULT 0,  -- … or so much of a GPU's
  in_manifest      INTEGER NOT NULL DEFAULT 1 CHECK (in_manifest IN (0, 1)),
  passed_over      INTEGER NOT NULL DEFAULT 0 CHECK (passed_over IN (0, 1 - in_manifest)), -- 1: it left a fleet's plan, and was not requeued since
  held_by          TEXT,                     -- who keeps it from being granted, whatever its status; NULL: nobody
  held_at          REAL CHECK ((held_at IS NULL) = (held_by IS NULL)),
  model            TEXT,                     -- of the spec, for lists; NULL: it names none
  mode             TEXT,
  edition          INTEGER NOT NULL DEFAULT 0, -- of the plan that brought it; not granted before that is in force
  seal INTEGER,
  CHECK (failed_by IS NULL OR ended_by IS NOT NULL),
  CHECK ((status IN ('claimed', 'running')) = (claim_id IS NOT NULL)),
  CHECK ((status IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL))
) STRICT;

-- The head of a requirement class is one step into this index, however many jobs wait behind it.
CREATE INDEX jobs_ready ON jobs (class_id, avoid_host, priority DESC, claimable_at, seq, edition)
  WHERE status = 'pending' AND held_at IS NULL AND passed_over = 0;
CREATE VIEW waiting AS SELECT * FROM jobs
  WHERE status = 'pending' AND held_at IS NULL AND passed_over = 0
  AND edition <= coalesce((SELECT edition FROM plan_in_force WHERE one = 1), 0);
CREATE INDEX jobs_held ON jobs (status) WHERE held_at IS NOT NULL;
CREATE INDEX jobs_passed_over ON jobs (status) WHERE passed_over = 1;
CREATE INDEX jobs_avoiding ON jobs (avoid_until) WHERE status = 'pending' AND avoid_host <> '';
CREATE INDEX jobs_live ON jobs (heartbeat_at) WHERE status IN ('claimed', 'running');
-- No index leads with status alone: the planner would prefer it to the partial ones above.
CREATE INDEX jobs_by_name ON jobs (name, status);  -- also covers the counts by status

-- Lists filter, sort and count in here and read the rows of one page alone. No statement looks for a model otherwise.
CREATE INDEX jobs_listed ON jobs (model, mode, status, worker_hostname, in_manifest, held_at, priority, created_at, claimed_at,
  finished_at, name);

CREATE TABLE attempts (
  job_id      TEXT NOT NULL REFERENCES jobs (job_id),
  attempt     INTEGER NOT NULL CHECK (attempt >= 1),
  claim_id    TEXT NOT NULL UNIQUE,
  generation  INTEGER NOT NULL,
  host        TEXT NOT NULL,
  instance_id TEXT,
  session_id  TEXT,
  slot        INTEGER,
  request_id  TEXT,
  granted_at  REAL NOT NULL,
  ended_at    REAL,
  end_reason  TEXT CHECK (end_reason IN ('completed', 'trainer_failed', 'interrupted', 'worker_shutdown',
                'host_lost', 'cancelled', 'superseded', 'upload_failed', 'spawn_failed')),
  error       TEXT,
  exit_code   INTEGER,
  seq         INTEGER NOT NULL DEFAULT 0,
  progress    TEXT,
  readoptions INTEGER NOT NULL DEFAULT 0,
  artifact_id TEXT,
  record      TEXT,
  log_next    INTEGER NOT NULL DEFAULT 0,
  lived_s     REAL,                 -- how long it ran, as far as anybody knows
  out_of_memory TEXT CHECK (out_of_memory IN ('ram', 'vram')),
  crashed     INTEGER NOT NULL DEFAULT 0 CHECK (crashed IN (0, 1)),   -- its host crashed with it in hand
  pardoned    INTEGER NOT NULL DEFAULT 0 CHECK (pardoned IN (0, 1)),  -- it counts against no budget
  granted     TEXT NOT NULL,        -- the job dict as it was granted
  data_digest TEXT,                 -- what its model was trained on, as the worker said; NULL: not known
  code_digest TEXT,
  training_commit TEXT,
  log_total   INTEGER,              -- how many lines it printed in all; NULL: it may print more, or nobody said
  heard_s     REAL DEFAULT 0,       -- how long it was heard training; NULL: it trains no more, and delivers
  paused      INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),  -- its trainer stood still when it was heard last …
  paused_s    REAL NOT NULL DEFAULT 0,  -- … and for how long it has in all, as its worker said
  held_s      REAL NOT NULL DEFAULT 0,  -- for how long its host has had it, by the receiver's clock; pauses are bounded
  booked      TEXT NOT NULL,        -- what it may use of its host, as JSON
  resumable   INTEGER NOT NULL DEFAULT 0 CHECK (resumable IN (0, 1)),  -- it can go on elsewhere, as its worker said last
  figure      REAL,                 -- its validation figure, from when its curve was removed; NULL: read that
  seal INTEGER,
  PRIMARY KEY (job_id, attempt),
  CHECK ((ended_at IS NULL) = (end_reason IS NULL))
) STRICT;

CREATE UNIQUE INDEX attempts_one_live ON attempts (job_id) WHERE ended_at IS NULL;
CREATE INDEX attempts_completed_by_host ON attempts (host) WHERE end_reason = 'completed';
CREATE INDEX attempts_live_by_host ON attempts (host) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX attempts_by_request ON attempts (host, request_id) WHERE request_id IS NOT NULL;

CREATE TABLE events (               -- one row per transition, in the transition's own transaction
  seq         INTEGER PRIMARY KEY,
  at          REAL NOT NULL,
  job_id      TEXT NOT NULL,
  transition  TEXT NOT NULL,
  from_status TEXT,
  to_status   TEXT NOT NULL,
  attempt     INTEGER,
  host        TEXT,
  detail      TEXT,
  seal INTEGER
) STRICT;
CREATE INDEX events_by_job ON events (job_id, seq);
CREATE INDEX events_by_host ON events (host, seq);

CREATE TABLE hosts (
  host            TEXT PRIMARY KEY,
  capability      TEXT NOT NULL,    -- as last reported
  instance_id     TEXT,
  session_id      TEXT,
  first_seen      REAL NOT NULL,
  last_seen       REAL NOT NULL,
  trainer_digests TEXT,
  set_aside       TEXT,             -- finished work that lies there undelivered, as last reported: a JSON list
  seal INTEGER
) STRICT;

CREATE TABLE deaths (               -- attempts that died at once, in a row, since anything went well on the host
  seq     INTEGER PRIMARY KEY,
  host    TEXT NOT NULL,
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  seal INTEGER,
  FOREIGN KEY (job_id, attempt) REFERENCES attempts (job_id, attempt)
) STRICT;
CREATE INDEX deaths_by_host ON deaths (host);

CREATE TABLE quarantines (          -- when a host was taken out, why, and who let it in again
  seq      INTEGER PRIMARY KEY,
  host     TEXT NOT NULL,
  since    REAL NOT NULL,
  cause    TEXT NOT NULL CHECK (cause IN ('deaths', 'self_test')),
  reason   TEXT NOT NULL,
  ended_at REAL,
  ended_by TEXT,
  seal INTEGER,
  CHECK ((ended_at IS NULL) = (ended_by IS NULL))
) STRICT;
CREATE UNIQUE INDEX quarantines_one_open ON quarantines (host) WHERE ended_at IS NULL;

CREATE TABLE host_orders (          -- when an operator took a host out, how, and who let it in again
  seq      INTEGER PRIMARY KEY,
  host     TEXT NOT NULL,
  kind     TEXT NOT NULL CHECK (kind IN ('pause', 'drain', 'hand_back')),
  since    REAL NOT NULL,
  by       TEXT NOT NULL,
  ended_at REAL,
  ended_by TEXT,
  seal INTEGER,
  CHECK ((ended_at IS NULL) = (ended_by IS NULL))
) STRICT;
CREATE UNIQUE INDEX host_orders_one_open ON host_orders (host) WHERE ended_at IS NULL;

CREATE TABLE artifacts (            -- bundles in the store, by the attempt that delivered them
  seq         INTEGER PRIMARY KEY,  -- order of delivery; the clock may step
  artifact_id TEXT NOT NULL,
  job_id      TEXT NOT NULL,
  attempt     INTEGER NOT NULL,
  model       TEXT NOT NULL,
  mode        TEXT NOT NULL,
  size        INTEGER NOT NULL CHECK (size >= 0),
  stored_at   REAL NOT NULL,
  seal INTEGER,
  UNIQUE (artifact_id, job_id, attempt)
) STRICT;
CREATE INDEX artifacts_by_job ON artifacts (job_id);

CREATE TABLE unconfirmed (          -- finished work under claims that this database did not grant; an operator decides on it
  claim_id    TEXT PRIMARY KEY,
  job_id      TEXT NOT NULL,
  host        TEXT NOT NULL,
  artifact_id TEXT NOT NULL,
  size        INTEGER NOT NULL CHECK (size >= 0),  -- of the bundle
  at          REAL NOT NULL,        -- when the bundle came
  told        TEXT,                 -- what completes the job by it, as JSON; NULL: only the bundle is here
  from_before INTEGER NOT NULL DEFAULT 0 CHECK (from_before IN (0, 1)),  -- its host says: granted by this database, before a restore
  refused_at  REAL,
  seal INTEGER
) STRICT;
CREATE INDEX unconfirmed_by_host ON unconfirmed (host);

CREATE TABLE restores (             -- when this database was brought back from a backup, or rebuilt
  seq INTEGER PRIMARY KEY,
  at  REAL NOT NULL,
  seal INTEGER
) STRICT;

CREATE TABLE results (              -- what the report of a completed attempt says; the report lies beside its bundle
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  report  TEXT NOT NULL,            -- SHA-256 of its bytes
  bytes   INTEGER NOT NULL CHECK (bytes >= 0),
  figures TEXT NOT NULL,            -- in short, as JSON
  test    TEXT,                     -- equal where two models were judged on the same windows; NULL: not known
  twin    TEXT NOT NULL,            -- equal for jobs that differ in their mode alone
  auroc      REAL,
  auroc_low  REAL,                  -- its 95 % interval; NULL: it has none
  auroc_high REAL,
  seal INTEGER,
  PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;
CREATE INDEX results_ranked ON results (test, -coalesce(auroc, -1), job_id);  -- the best first, without a figure last
CREATE INDEX results_by_twin ON results (twin);

CREATE TABLE log_chunks (           -- the newest of trainers' output, in the pieces in which it arrived
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  first   INTEGER NOT NULL,         -- number of the first line within the attempt
  count   INTEGER NOT NULL,
  text    TEXT NOT NULL,            -- lines joined by \n
  seal INTEGER,
  PRIMARY KEY (job_id, attempt, first)
) STRICT, WITHOUT ROWID;

CREATE TABLE log_files (            -- the output before that: runs of lines from 0 on, each a file of the store or not kept
  job_id    TEXT NOT NULL,
  attempt   INTEGER NOT NULL,
  first     INTEGER NOT NULL,       -- number of the first line within the attempt
  count     INTEGER NOT NULL CHECK (count >= 1),
  raw_bytes INTEGER NOT NULL,       -- of the text, a line end for each line
  bytes     INTEGER NOT NULL,       -- of the file, also while it waits to be removed; 0: there is none
  sha256    TEXT,                   -- of the file; NULL: the lines are not kept …
  gone      TEXT CHECK (gone IN ('size', 'age', 'worker', 'lost')),  -- … for this reason
  gone_at   REAL,
  seal INTEGER,
  PRIMARY KEY (job_id, attempt, first),
  CHECK ((gone IS NULL) = (sha256 IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX log_files_going ON log_files (gone_at) WHERE gone IS NOT NULL AND bytes > 0;

CREATE TABLE curve_points (         -- epochs of attempts, as their trainers reported them
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  epoch   INTEGER NOT NULL CHECK (epoch >= 0),
  loss    REAL,
  metric  REAL,
  seconds REAL CHECK (seconds >= 0), -- since the trainer began; NULL: it does not say
  stage   TEXT,                     -- of several trainings the one that this is an epoch of; NULL: there is one …
  stage_epoch INTEGER,              -- … in which it has this number
  metric_name TEXT,
  line    INTEGER,                  -- number of the output line that said it; NULL: so far only a heartbeat did
  seal INTEGER,
  PRIMARY KEY (job_id, attempt, epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage_samples (        -- what trainers used of their hosts, one at most for each heartbeat
  job_id  TEXT NOT NULL,
  attempt INTEGER NOT NULL,
  seq     INTEGER NOT NULL,         -- of the heartbeat
  seconds REAL NOT NULL,            -- since the grant, when it was heard
  cpu     REAL,                     -- cores in use, the mean since the sample before
  memory_bytes     INTEGER,
  gpu     REAL,                     -- share of its time in which the GPU worked, of 1; NULL: no GPU, or not known
  gpu_memory_bytes INTEGER,
  seal INTEGER,
  PRIMARY KEY (job_id, attempt, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE certificates (         -- what the receiver's authority issued; a certificate not in here is refused
  fingerprint TEXT PRIMARY KEY,     -- SHA-256 of the certificate, hexadecimal
  role        TEXT NOT NULL CHECK (role IN ('host', 'operator', 'reader', 'watcher')),
  name        TEXT NOT NULL,
  issued_at   REAL NOT NULL,
  expires_at  REAL NOT NULL,
  revoked_at  REAL,
  seal INTEGER
) STRICT;

CREATE TABLE invitations (          -- one-time codes, of which only the hash is kept
  code_sha256 TEXT PRIMARY KEY,     -- of role, name and code
  role        TEXT NOT NULL CHECK (role IN ('host', 'operator', 'reader', 'watcher')),
  name        TEXT NOT NULL,
  created_at  REAL NOT NULL,
  expires_at  REAL NOT NULL,
  used_by     TEXT,                 -- SHA-256 of the certificate request it served
  seal INTEGER
) STRICT;

CREATE TABLE tokens (               -- operators' and readers' tokens, of which only the hash is kept
  token_sha256 TEXT PRIMARY KEY,
  name         TEXT NOT NULL,
  created_at   REAL NOT NULL,
  expires_at   REAL NOT NULL,
  revoked_at   REAL,
  role         TEXT CHECK (role IN ('reader')),  -- NULL: an operator's
  seal INTEGER
) STRICT;

CREATE TABLE audit (                -- acts of operators and joinings; append-only, each row chained to the one before
  seq     INTEGER PRIMARY KEY,
  at      REAL NOT NULL,
  who     TEXT NOT NULL,
  act     TEXT NOT NULL,
  subject TEXT NOT NULL,
  before  TEXT,                     -- JSON
  after   TEXT,                     -- JSON
  digest  TEXT NOT NULL             -- SHA-256 over the row and the digest before, hexadecimal
) STRICT;

CREATE TABLE plan_datasets (        -- what the names of data sets in the plan stood for at its last reload
  name       TEXT PRIMARY KEY,
  dataset_id TEXT NOT NULL,
  seal INTEGER
) STRICT;

CREATE TABLE notices (              -- what somebody may want to know, written with what it follows from
  seq     INTEGER PRIMARY KEY,
  at      REAL NOT NULL,
  kind    TEXT NOT NULL CHECK (kind IN
    ('failure', 'plan_done', 'quarantine', 'disk', 'certificate', 'incident', 'change', 'unconfirmed')),
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

CREATE TABLE removals (             -- what the plan's [retention] took away, when and why
  seq     INTEGER PRIMARY KEY,
  at      REAL NOT NULL,
  what    TEXT NOT NULL CHECK (what IN ('bundle', 'log', 'curve', 'events', 'dataset')),
  subject TEXT NOT NULL,            -- of a bundle its place in the store, of a log or curve its job, of a data set its id
  number  INTEGER NOT NULL DEFAULT 0, -- of the attempt; of events, the last that went
  size    INTEGER NOT NULL,         -- bytes
  why     TEXT NOT NULL,
  newest  REAL,                     -- of events, when the last of them was
  done_at REAL,                     -- NULL: its file is yet to be removed
  back_at REAL,                     -- the same bundle was delivered again
  seal INTEGER
) STRICT;
CREATE UNIQUE INDEX removals_standing ON removals (what, subject, number) WHERE back_at IS NULL;
CREATE INDEX removals_unfinished ON removals (what) WHERE done_at IS NULL AND back_at IS NULL;


CREATE TABLE watches (              -- hosts that are watched with a model, and when each watch was heard; receiver's clock
  host       TEXT NOT NULL,
  checkpoint TEXT NOT NULL,         -- the model's digest; empty: it has none
  model      TEXT NOT NULL,
  since      REAL NOT NULL,
  heard_at   REAL NOT NULL,
  every_s    REAL NOT NULL,         -- it means to be heard again within this time
  seal INTEGER,
  PRIMARY KEY (host, checkpoint)
) STRICT, WITHOUT ROWID;

CREATE TABLE incidents (            -- what watched hosts reported: alarms, and that the host has changed
  seq        INTEGER PRIMARY KEY,
  host       TEXT NOT NULL,
  id         TEXT NOT NULL,         -- the host's own: the same incident always has it
  kind       TEXT NOT NULL CHECK (kind IN ('alarms', 'change')),
  checkpoint TEXT NOT NULL,
  model      TEXT NOT NULL,
  raised_at  REAL NOT NULL,         -- by the host's clock
  facts      TEXT NOT NULL,         -- as JSON
  told_at    REAL NOT NULL,         -- by the receiver's clock: first, and last
  heard_at   REAL NOT NULL,
  ended      TEXT CHECK (ended IN ('over', 'confirmed', 'reference', 'later')),  -- as its host says; later: another change
  ended_at   REAL,
  verdict    TEXT CHECK (verdict IN ('confirmed', 'false', 'closed')),  -- of a person, whatever the host says
  judged_by  TEXT,
  judged_at  REAL,
  seal INTEGER,
  CHECK ((ended IS NULL) = (ended_at IS NULL)),
  CHECK ((verdict IS NULL) = (judged_by IS NULL)),
  CHECK ((verdict IS NULL) = (judged_at IS NULL))
) STRICT;
CREATE UNIQUE INDEX incidents_once ON incidents (host, kind, id);
CREATE INDEX incidents_by_host ON incidents (host, seq);
CREATE INDEX incidents_open ON incidents (kind, host) WHERE ended IS NULL AND verdict IS NULL;

CREATE VIEW gone_bundles AS SELECT subject, at, why, done_at FROM removals  -- that retention took away
  WHERE what = 'bundle' AND number = 0 AND back_at IS NULL;
CREATE VIEW kept_bundles AS         -- deliveries of bundles in the store, with what their jobs make of them now
  SELECT r.*, j.name, j.status, j.held_at, j.finished_at, j.generation, a.figure, a.host,
    j.status = 'completed' AND j.attempt = r.attempt AND j.artifact_id = r.artifact_id AS current
  FROM artifacts AS r JOIN jobs AS j ON j.job_id = r.job_id
  JOIN attempts AS a ON a.job_id = r.job_id AND a.attempt = r.attempt
  WHERE NOT EXISTS (SELECT 1 FROM gone_bundles AS g WHERE g.subject = r.model || '_' || r.mode || '/' || r.artifact_id);
CREATE VIEW jobs_shown AS           -- jobs as lists show them, each with the attempt that matters now
  SELECT j.*, COALESCE(b.progress, a.progress) AS progress, a.paused, a.data_digest, a.code_digest, a.training_commit,
    r.auroc, r.auroc_low, r.auroc_high, r.test, g.at AS removed_at, g.why AS removed_why
  FROM jobs AS j LEFT JOIN attempts AS a ON a.job_id = j.job_id AND a.attempt = j.attempt
  LEFT JOIN attempts AS b ON b.job_id = a.job_id  -- what it resumes, until it says itself how far it is
    AND b.attempt = (SELECT max(attempt) FROM attempts
      WHERE job_id = a.job_id AND attempt < a.attempt AND instr(progress, '"epoch":'))
    AND b.generation = a.generation AND b.end_reason <> 'trainer_failed' AND (b.host = a.host OR b.resumable)
    AND NOT COALESCE(instr(a.progress, '"epoch":') + instr(a.progress, '"bytes":'), 0) AND a.ended_at IS NULL
  LEFT JOIN results AS r ON r.job_id = j.job_id AND r.attempt = j.attempt AND j.status = 'completed'
  LEFT JOIN gone_bundles AS g ON g.subject = j.model || '_' || j.mode || '/' || j.artifact_id;
CREATE VIEW events_named AS
  SELECT e.seq, e.at, e.job_id, j.name, j.in_manifest, e.transition, e.from_status, e.to_status, e.attempt, e.host, e.detail
  FROM events AS e LEFT JOIN jobs AS j ON j.job_id = e.job_id;

CREATE TABLE seals (                -- how many rows each table holds
  tbl TEXT PRIMARY KEY,
  n   INTEGER NOT NULL
) STRICT;
INSERT INTO seals (tbl, n) VALUES
  ('artifacts', 0),
  ('attempts', 0),
  ('audit', 0),
  ('certificates', 0),
  ('classes', 0),
  ('curve_points', 0),
  ('deaths', 0),
  ('events', 0),
  ('host_orders', 0),
  ('hosts', 0),
  ('incidents', 0),
  ('invitations', 0),
  ('jobs', 0),
  ('log_chunks', 0),
  ('log_files', 0),
  ('notice_cursor', 0),
  ('notices', 0),
  ('notify_channels', 0),
  ('plan_datasets', 0),
  ('plan_in_force', 0),
  ('quarantines', 0),
  ('removals', 0),
  ('restores', 0),
  ('results', 0),
  ('tokens', 0),
  ('unconfirmed', 0),
  ('usage_samples', 0),
  ('watches', 0);
