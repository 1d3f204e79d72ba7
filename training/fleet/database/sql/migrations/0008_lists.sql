-- From version 7 to 8: lists that filter, sort and count without reading each job's specification.

-- NULL in rows of before, so that their checksums stay right; the next start fills them in.
ALTER TABLE jobs ADD COLUMN model TEXT;
ALTER TABLE jobs ADD COLUMN mode TEXT;
CREATE INDEX jobs_listed ON jobs (model, mode, status, worker_hostname, held_at, priority, created_at, claimed_at,
  finished_at, name);
CREATE INDEX events_by_host ON events (host, seq);
