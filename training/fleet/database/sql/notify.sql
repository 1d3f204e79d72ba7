-- The statements of notifications, named, with one line of why.

-- name: add_notice — something happened that a person may want to know
INSERT INTO notices (at, kind, subject, sentence, event, job_id, lasting)
VALUES (:at, :kind, :subject, :sentence, :event, :job_id, :lasting)

-- name: lasting_notices — what was told of and still holds
SELECT subject FROM notices WHERE kind = :kind AND lasting = 1 AND over_at IS NULL

-- name: end_notice — it holds no longer
UPDATE notices SET over_at = :now WHERE kind = :kind AND subject = :subject AND lasting = 1 AND over_at IS NULL

-- name: notices — from one on, in order
SELECT * FROM notices WHERE seq > :after ORDER BY seq LIMIT :most

-- name: count_notices — how many of each kind came after one
SELECT kind, count(*) AS n FROM notices WHERE seq > :after GROUP BY kind

-- name: notify_channels — how far every channel has got
SELECT * FROM notify_channels ORDER BY name

-- name: notify_channel — how far this one has got
SELECT * FROM notify_channels WHERE name = :name

-- name: add_notify_channel — a new one begins with what comes from now on
INSERT INTO notify_channels (name, sent) VALUES (:name, (SELECT coalesce(max(seq), 0) FROM notices))

-- name: forget_notify_channel — the plan names it no longer
DELETE FROM notify_channels WHERE name = :name

-- name: fix_notify_message — the notices up to this one are the message under way, also after a crash
UPDATE notify_channels SET fixed = :seq, tries = 0, next_at = NULL WHERE name = :name

-- name: notify_sent — the message arrived
UPDATE notify_channels SET sent = :seq, fixed = NULL, tries = 0, next_at = NULL, error = NULL, sent_at = :now
WHERE name = :name

-- name: skip_notices — none of those that wait is for this channel
UPDATE notify_channels SET sent = (SELECT max(seq) FROM notices)
WHERE name = :name AND sent < (SELECT max(seq) FROM notices)

-- name: notify_failed — it did not, and when it is tried again
UPDATE notify_channels SET tries = :tries, next_at = :next_at, error = :error WHERE name = :name

-- name: notice_cursor — the rows that were already looked at for notices
SELECT events, quarantines FROM notice_cursor WHERE one = 1

-- name: move_notice_cursor — and these are, too
INSERT INTO notice_cursor (one, events, quarantines) VALUES (1, :events, :quarantines)
ON CONFLICT (one) DO UPDATE SET events = :events, quarantines = :quarantines

-- name: job_ends_since — the ends of jobs after an event, oldest first
SELECT e.seq, e.at, e.job_id, e.to_status, e.attempt, e.host, e.detail, j.name, j.error, j.in_manifest
FROM events AS e JOIN jobs AS j ON j.job_id = e.job_id
WHERE e.seq > :after AND e.to_status IN ('completed', 'failed', 'cancelled')
  AND (e.from_status IS NULL OR e.from_status <> e.to_status)
ORDER BY e.seq LIMIT :most

-- name: quarantined_since — hosts that were taken out after a quarantine
SELECT seq, host, since, reason, ended_at FROM quarantines WHERE seq > :after ORDER BY seq LIMIT :most

-- name: plan_counts — how many jobs of the plan stand where; those held do not keep a plan from being done
SELECT status, count(*) AS n FROM jobs WHERE in_manifest = 1 AND (held_at IS NULL OR status <> 'pending')
GROUP BY status

-- name: expiring_certificates — the newest of each owner, if it expires before a time and was not revoked
SELECT role, name, max(expires_at) AS expires_at FROM certificates WHERE revoked_at IS NULL
GROUP BY role, name HAVING max(expires_at) < :before AND max(expires_at) > :after

-- name: forget_notices — old ones that every channel has sent
DELETE FROM notices WHERE at < :before AND (lasting = 0 OR over_at IS NOT NULL)
  AND seq <= coalesce((SELECT min(sent) FROM notify_channels), seq)
