-- The statements of watched hosts and their incidents, named, with one line of why.

-- name: watches — of one host, or of all
SELECT * FROM watches WHERE :host = '' OR host = :host ORDER BY host, heard_at DESC, checkpoint

-- name: watch — one that was heard before
SELECT * FROM watches WHERE host = :host AND checkpoint = :checkpoint

-- name: count_watches — of all hosts
SELECT count(*) AS n FROM watches

-- name: keep_watch — it was heard; after a silence it begins anew
INSERT INTO watches (host, checkpoint, model, since, heard_at, every_s)
VALUES (:host, :checkpoint, :model, :now, :now, :every_s)
ON CONFLICT (host, checkpoint) DO UPDATE SET model = excluded.model, every_s = excluded.every_s,
  since = CASE WHEN :broken = 1 THEN :now ELSE since END, heard_at = :now

-- name: thin_watches — of a host, those heard last stay
DELETE FROM watches WHERE host = :host AND checkpoint NOT IN
  (SELECT checkpoint FROM watches WHERE host = :host ORDER BY heard_at DESC, checkpoint LIMIT :most)

-- name: forget_watches — nobody heard them for long
DELETE FROM watches WHERE heard_at < :before

-- name: incident_of_host — by the host's own id
SELECT * FROM incidents WHERE host = :host AND kind = :kind AND id = :id

-- name: incident — by its number
SELECT * FROM incidents WHERE seq = :seq

-- name: incident_before — the so-manieth newest of a host
SELECT seq, told_at FROM incidents WHERE host = :host ORDER BY seq DESC LIMIT 1 OFFSET :back

-- name: replace_changes — a watch reports another one
UPDATE incidents SET ended = 'later', ended_at = :now
WHERE kind = 'change' AND host = :host AND checkpoint = :checkpoint AND ended IS NULL

-- name: add_incident — one is reported for the first time
INSERT INTO incidents (host, id, kind, checkpoint, model, raised_at, facts, told_at, heard_at, ended, ended_at)
VALUES (:host, :id, :kind, :checkpoint, :model, :raised_at, :facts, :now, :now, :ended, :ended_at)
RETURNING seq

-- name: move_incident — what was reported of it since
UPDATE incidents SET facts = :facts, heard_at = :now, ended = :ended, ended_at = :ended_at WHERE seq = :seq

-- name: thin_incidents — of a host, the newest stay
DELETE FROM incidents WHERE host = :host AND seq <= :seq

-- name: forget_incidents — nothing was heard of them for long
DELETE FROM incidents WHERE heard_at < :before

-- name: judge_incident — a person looked into it, or takes that back
UPDATE incidents SET verdict = :verdict, judged_by = :who, judged_at = :now WHERE seq = :seq

-- name: incidents — the newest before a number
SELECT * FROM incidents WHERE seq < :before ORDER BY seq DESC LIMIT :most

-- name: incidents_of_host — the same, of one host
SELECT * FROM incidents WHERE host = :host AND seq < :before ORDER BY seq DESC LIMIT :most

-- name: incidents_open — how many alarms are not over and not judged, by host
SELECT host, count(*) AS n, min(raised_at) AS raised_at FROM incidents
WHERE kind = 'alarms' AND ended IS NULL AND verdict IS NULL GROUP BY host ORDER BY host

-- name: changes_standing — neither confirmed nor closed, of watches that are still heard
SELECT i.* FROM incidents AS i JOIN watches AS w ON w.host = i.host AND w.checkpoint = i.checkpoint
WHERE i.kind = 'change' AND i.ended IS NULL AND i.verdict IS NULL AND w.heard_at >= :heard_since ORDER BY i.host, i.seq
