-- The statements of watched hosts, their incidents and their changes, named, with one line of why.

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
SELECT * FROM incidents WHERE host = :host AND id = :id

-- name: incident — by its number
SELECT * FROM incidents WHERE seq = :seq

-- name: incident_before — the so-manieth newest of a host
SELECT seq, told_at FROM incidents WHERE host = :host ORDER BY seq DESC LIMIT 1 OFFSET :back

-- name: add_incident — one is told of for the first time
INSERT INTO incidents (host, id, checkpoint, model, rule, began_at, raised_at, last_alarm_at, over, alarms, peak,
  threshold, why, told_at, heard_at)
VALUES (:host, :id, :checkpoint, :model, :rule, :began_at, :raised_at, :last_alarm_at, :over, :alarms, :peak,
  :threshold, :why, :now, :now)
RETURNING seq

-- name: move_incident — what was told of it since
UPDATE incidents SET last_alarm_at = :last_alarm_at, over = :over, alarms = :alarms, peak = :peak, why = :why,
  heard_at = :now WHERE seq = :seq

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

-- name: incidents_open — how many are not over and not judged, by host
SELECT host, count(*) AS n, min(raised_at) AS raised_at, max(seq) AS seq FROM incidents
WHERE over = 0 AND verdict IS NULL GROUP BY host ORDER BY host

-- name: change_of_host — by the host's own id
SELECT * FROM host_changes WHERE host = :host AND id = :id

-- name: change_before — the so-manieth newest of a host
SELECT seq, told_at FROM host_changes WHERE host = :host ORDER BY seq DESC LIMIT 1 OFFSET :back

-- name: replace_changes — a watch tells of another one
UPDATE host_changes SET ended = 'later', ended_at = :now
WHERE host = :host AND checkpoint = :checkpoint AND ended IS NULL

-- name: add_change — one is told of for the first time
INSERT INTO host_changes (host, id, checkpoint, model, since, noticed_at, at_once, channels, more_channels, told_at,
  heard_at, ended, ended_at)
VALUES (:host, :id, :checkpoint, :model, :since, :noticed_at, :at_once, :channels, :more_channels, :now, :now, :ended,
  :ended_at)
RETURNING seq

-- name: move_change — it was told again, or is over
UPDATE host_changes SET heard_at = :now, ended = :ended, ended_at = :ended_at WHERE seq = :seq

-- name: change — by its number
SELECT * FROM host_changes WHERE seq = :seq

-- name: close_change — an operator ends it here, or takes that back
UPDATE host_changes SET closed_by = :who, closed_at = :now WHERE seq = :seq

-- name: thin_changes — of a host, the newest stay
DELETE FROM host_changes WHERE host = :host AND seq <= :seq

-- name: forget_changes — nothing was heard of them for long
DELETE FROM host_changes WHERE heard_at < :before

-- name: changes — the newest
SELECT * FROM host_changes ORDER BY seq DESC LIMIT :most

-- name: changes_of_host — the same, of one host
SELECT * FROM host_changes WHERE host = :host ORDER BY seq DESC LIMIT :most

-- name: changes_standing — that nobody has confirmed or closed, of watches that are still heard
SELECT c.* FROM host_changes AS c JOIN watches AS w ON w.host = c.host AND w.checkpoint = c.checkpoint
WHERE c.ended IS NULL AND c.closed_by IS NULL AND w.heard_at >= :heard_since ORDER BY c.host, c.seq
