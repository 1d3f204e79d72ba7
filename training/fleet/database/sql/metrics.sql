-- Statements of the receiver's figures for Prometheus, as those in queries.sql.

-- name: newest_event — how far things have come; no job's state changes without an event
SELECT COALESCE(max(seq), 0) AS seq FROM events

-- name: edited_since — whether an operator moved a job behind a row
SELECT 1 AS edited FROM events
WHERE seq > :after AND transition IN ('insert', 'cancel', 'take_out', 'requeue', 'hold', 'unhold') LIMIT 1

-- name: ended_since — attempts whose end was noted behind a row
SELECT e.seq, e.at, e.transition, e.detail, a.granted_at, json_extract(j.spec, '$.model') AS model
FROM events AS e JOIN attempts AS a ON a.job_id = e.job_id AND a.attempt = e.attempt
JOIN jobs AS j ON j.job_id = e.job_id
WHERE e.seq > :after AND e.transition IN ('complete', 'adopt', 'deliver', 'retry', 'hand_back', 'sweep', 'exhaust',
  'cancel', 'requeue')
ORDER BY e.seq LIMIT :most

-- name: waiting — how many jobs of each requirement class wait for a host, and since when the longest does
WITH waiting AS MATERIALIZED (  -- counted along jobs_ready, which holds all that is needed
  SELECT class_id, count(*) AS n, min(claimable_at) AS since FROM jobs
  WHERE status = 'pending' AND held_at IS NULL AND passed_over = 0 GROUP BY class_id)
SELECT c.needs, w.n, w.since FROM waiting AS w JOIN classes AS c ON c.class_id = w.class_id ORDER BY c.class_id

-- name: stored — the size of all bundles in the store, each once, but for those that retention took away
SELECT COALESCE(sum(size), 0) AS size FROM (SELECT max(size) AS size FROM kept_bundles GROUP BY artifact_id)
