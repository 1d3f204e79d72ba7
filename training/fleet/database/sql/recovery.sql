-- What the doctor asks (each doctor_ statement returns the rows that break a promise) and what a rebuild writes.

-- name: doctor_live — a job is live if and only if one attempt at it is
SELECT j.job_id, j.name, j.status, count(a.claim_id) AS live FROM jobs AS j
LEFT JOIN attempts AS a ON a.job_id = j.job_id AND a.ended_at IS NULL
GROUP BY j.job_id, j.name, j.status HAVING (j.status IN ('claimed', 'running')) <> (count(a.claim_id) = 1)

-- name: doctor_claim — the live attempt is the job's last, and the one that its row names
SELECT j.job_id, j.name, j.attempt FROM jobs AS j
LEFT JOIN attempts AS a ON a.claim_id = j.claim_id AND a.job_id = j.job_id AND a.attempt = j.attempt
  AND a.generation = j.generation AND a.host = j.worker_hostname AND a.ended_at IS NULL
WHERE j.claim_id IS NOT NULL AND a.claim_id IS NULL

-- name: doctor_numbers — attempts are numbered 1, 2, 3 … and none is ever deleted; a rebuilt history has gaps
SELECT j.job_id, j.name, j.attempt, count(a.attempt) AS known FROM jobs AS j
LEFT JOIN attempts AS a ON a.job_id = j.job_id
GROUP BY j.job_id, j.name, j.attempt
HAVING (count(a.attempt) <> j.attempt OR COALESCE(max(a.attempt), 0) <> j.attempt)
  AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.job_id = j.job_id AND e.detail = 'rebuilt')
  AND NOT EXISTS (SELECT 1 FROM removals AS g WHERE g.what = 'events' AND g.newest >= j.created_at)

-- name: doctor_grants — grants of a generation are counted
SELECT j.job_id, j.name, j.grants, count(a.attempt) AS known FROM jobs AS j
LEFT JOIN attempts AS a ON a.job_id = j.job_id AND a.generation = j.generation
GROUP BY j.job_id, j.name, j.grants HAVING count(a.attempt) <> j.grants

-- name: doctor_counters — no more is counted against a job than has happened to it
SELECT * FROM (
  SELECT j.job_id, j.name, j.trainer_failures, j.host_losses,
    (SELECT count(*) FROM attempts AS a WHERE a.job_id = j.job_id AND a.generation = j.generation
      AND a.pardoned = 0 AND a.end_reason = 'trainer_failed') AS failed,
    (SELECT count(*) FROM attempts AS a WHERE a.job_id = j.job_id AND a.generation = j.generation
      AND a.pardoned = 0 AND a.end_reason IN ('host_lost', 'upload_failed', 'spawn_failed')) AS lost
  FROM jobs AS j WHERE j.trainer_failures > 0 OR j.host_losses > 0) AS counted
WHERE trainer_failures > failed OR host_losses > lost

-- name: doctor_budgets — nothing waits whose budget is used up
SELECT job_id, name, in_manifest, trainer_failures, host_losses, grants FROM jobs
WHERE status = 'pending' AND (trainer_failures >= :max_attempts OR host_losses >= :max_host_losses
  OR grants >= :max_grants)

-- name: doctor_reasons — a failed job says what ended it
SELECT job_id, name, in_manifest FROM jobs WHERE status = 'failed' AND (ended_by IS NULL
  OR coalesce(failed_by, '') NOT IN ('refusal', 'memory', 'failures', 'losses', 'grants', 'crashes'))

-- name: doctor_moves — every kind of move that was ever noted
SELECT transition, from_status, to_status, count(*) AS n, min(seq) AS seq FROM events
GROUP BY transition, from_status, to_status

-- name: doctor_event_numbers — events have no gap
SELECT count(*) AS n, min(seq) AS least, max(seq) AS most,
  COALESCE((SELECT max(number) FROM removals WHERE what = 'events'), 0) AS gone FROM events

-- name: doctor_chain — each event of a job begins where the one before led
SELECT job_id, seq, before, from_status FROM (
  SELECT job_id, seq, from_status, lag(to_status) OVER (PARTITION BY job_id ORDER BY seq) AS before FROM events
) AS chain WHERE COALESCE(before, '') <> COALESCE(from_status, '') AND NOT (before IS NULL AND EXISTS (
  SELECT 1 FROM removals AS g JOIN jobs AS j ON j.job_id = chain.job_id
  WHERE g.what = 'events' AND g.newest >= j.created_at))

-- name: doctor_replay — the events of a job, replayed, lead to its status
SELECT j.job_id, j.name, j.status, e.to_status FROM jobs AS j
LEFT JOIN events AS e ON e.seq = (SELECT max(seq) FROM events WHERE job_id = j.job_id)
WHERE COALESCE(e.to_status, '') <> j.status AND NOT (e.seq IS NULL AND EXISTS (
  SELECT 1 FROM removals AS g WHERE g.what = 'events' AND g.newest >= j.created_at))

-- name: doctor_held — who holds a job, and since when, is what its last hold or unhold says
SELECT j.job_id, j.name, j.in_manifest, j.held_by, j.held_at, e.detail AS said FROM jobs AS j
LEFT JOIN events AS e ON e.transition = 'hold' AND e.seq = (SELECT max(seq) FROM events
  WHERE job_id = j.job_id AND transition IN ('hold', 'unhold'))
WHERE (COALESCE(j.held_by, '') <> COALESCE(e.detail, '') OR COALESCE(j.held_at, 0.0) <> COALESCE(e.at, 0.0))
  AND NOT (e.seq IS NULL AND EXISTS (SELECT 1 FROM removals AS g WHERE g.what = 'events' AND g.newest >= j.held_at))

-- name: doctor_strangers — no event, delivery, output or figure is of a job or attempt that is not there
SELECT 'event' AS what, job_id, seq AS attempt FROM events AS e
WHERE NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.job_id = e.job_id)
UNION ALL SELECT 'delivery', job_id, attempt FROM artifacts AS r
WHERE NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.job_id = r.job_id AND a.attempt = r.attempt)
UNION ALL SELECT DISTINCT 'output', job_id, attempt FROM log_chunks AS c
WHERE NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.job_id = c.job_id AND a.attempt = c.attempt)
UNION ALL SELECT DISTINCT 'file of output', job_id, attempt FROM log_files AS f
WHERE NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.job_id = f.job_id AND a.attempt = f.attempt)
UNION ALL SELECT DISTINCT 'point of a curve', job_id, attempt FROM curve_points AS p
WHERE NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.job_id = p.job_id AND a.attempt = p.attempt)
UNION ALL SELECT DISTINCT 'sample of use', job_id, attempt FROM usage_samples AS s
WHERE NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.job_id = s.job_id AND a.attempt = s.attempt)

-- name: doctor_granted — what an attempt was granted is its job
SELECT job_id, attempt FROM attempts WHERE COALESCE(
  CASE WHEN json_valid(granted) THEN json_extract(granted, '$.job_id') END, '') <> job_id

-- name: doctor_ungranted — every attempt has the event of its grant
SELECT a.job_id, a.attempt, a.host FROM attempts AS a WHERE NOT EXISTS (
  SELECT 1 FROM events AS e WHERE e.job_id = a.job_id AND e.transition IN ('claim', 'deliver')
    AND e.attempt = a.attempt)
  AND NOT EXISTS (SELECT 1 FROM removals AS g WHERE g.what = 'events' AND g.newest >= a.granted_at)

-- name: doctor_completed — a completed job was completed by its last attempt, with the artifact that its row names
SELECT j.job_id, j.name, j.artifact_id, a.end_reason, a.artifact_id AS delivered FROM jobs AS j
LEFT JOIN attempts AS a ON a.job_id = j.job_id AND a.attempt = j.attempt
WHERE j.status = 'completed' AND (COALESCE(a.end_reason, '') <> 'completed'
  OR COALESCE(a.artifact_id, '') <> COALESCE(j.artifact_id, ' '))

-- name: doctor_uncompleted — only a completed job has an artifact
SELECT job_id, name, in_manifest, status FROM jobs WHERE status <> 'completed' AND artifact_id IS NOT NULL

-- name: doctor_twice — a generation of a job is completed once
SELECT job_id, generation, count(*) AS n FROM attempts WHERE end_reason = 'completed'
GROUP BY job_id, generation HAVING count(*) > 1

-- name: doctor_undelivered — what completed an attempt was delivered by it
SELECT a.job_id, a.attempt, a.artifact_id FROM attempts AS a
LEFT JOIN artifacts AS r ON r.job_id = a.job_id AND r.attempt = a.attempt AND r.artifact_id = a.artifact_id
WHERE a.end_reason = 'completed' AND r.artifact_id IS NULL

-- name: doctor_slots — a slot of a session holds one job
SELECT host, slot, count(*) AS n FROM attempts
WHERE ended_at IS NULL AND session_id IS NOT NULL GROUP BY host, session_id, slot HAVING count(*) > 1

-- name: doctor_output — output is stored to the line that the next one is asked from
SELECT * FROM (SELECT a.job_id, a.attempt, a.log_next, max(
    COALESCE((SELECT max(first + count) FROM log_chunks AS c WHERE c.job_id = a.job_id AND c.attempt = a.attempt), 0),
    COALESCE((SELECT max(first + count) FROM log_files AS f WHERE f.job_id = a.job_id AND f.attempt = a.attempt), 0)
  ) AS stored FROM attempts AS a) AS counted
WHERE stored <> log_next

-- name: doctor_output_gaps — runs of output follow one another from 0; a gap ends in a line that tells its length
SELECT job_id, attempt, first, before FROM (
  SELECT job_id, attempt, first, text,
    lag(first + count, 1, 0) OVER (PARTITION BY job_id, attempt ORDER BY first) AS before
  FROM (SELECT job_id, attempt, first, count, text FROM log_chunks
    UNION ALL SELECT job_id, attempt, first, count, '' FROM log_files) AS runs) AS pieces
WHERE before <> first
  AND (before > first OR text NOT LIKE replace(:gap, '{}', first + 1 - before) || '%')

-- name: doctor_generations — a generation is begun by a requeue, and by nothing else
SELECT * FROM (
  SELECT j.job_id, j.name, j.generation,
    1 + (SELECT count(*) FROM events AS e WHERE e.job_id = j.job_id AND e.transition = 'requeue') AS begun
  FROM jobs AS j
  WHERE NOT EXISTS (SELECT 1 FROM events AS e WHERE e.job_id = j.job_id AND e.detail = 'rebuilt')
    AND NOT EXISTS (SELECT 1 FROM removals AS g WHERE g.what = 'events' AND g.newest >= j.created_at)) AS requeued
WHERE generation <> begun

-- name: doctor_arrivals — jobs are numbered in the order in which they were entered
SELECT job_id, name FROM (
  SELECT j.job_id, j.name, e.seq, lag(e.seq) OVER (ORDER BY j.seq) AS before FROM jobs AS j
  JOIN events AS e ON e.job_id = j.job_id AND e.transition = 'insert') AS entered
WHERE before > seq

-- name: doctor_times — when something was is what its event says; a hold, which moves nothing, ends nothing
SELECT * FROM (
  SELECT j.job_id, j.name, 'was entered' AS what, j.created_at AS said, e.at FROM jobs AS j
  JOIN events AS e ON e.job_id = j.job_id AND e.transition = 'insert'
  UNION ALL SELECT j.job_id, j.name, 'ended', j.finished_at, e.at FROM jobs AS j
  JOIN events AS e ON e.seq = (SELECT max(seq) FROM events WHERE job_id = j.job_id
    AND COALESCE(from_status, '') <> to_status)
  WHERE j.finished_at IS NOT NULL
  UNION ALL SELECT a.job_id, NULL, 'was granted as attempt ' || a.attempt, a.granted_at, e.at FROM attempts AS a
  JOIN events AS e ON e.job_id = a.job_id AND e.attempt = a.attempt AND e.transition = 'claim'
  UNION ALL SELECT a.job_id, NULL, 'ended its attempt ' || a.attempt, a.ended_at, e.at FROM attempts AS a
  JOIN events AS e ON e.seq = (SELECT max(seq) FROM events WHERE job_id = a.job_id AND attempt = a.attempt)
  WHERE a.ended_at IS NOT NULL) AS noted
WHERE abs(said - at) > :moment

-- name: doctor_ends — the last event of an ended attempt says how it ended
SELECT * FROM (
  SELECT a.job_id, a.attempt, a.end_reason, e.transition,
    CASE WHEN e.transition IN ('complete', 'adopt', 'deliver') THEN 'completed' WHEN e.transition = 'cancel' THEN 'cancelled'
      WHEN e.transition = 'requeue' THEN 'superseded' ELSE COALESCE(e.detail, a.end_reason) END AS noted
  FROM attempts AS a
  JOIN events AS e ON e.seq = (SELECT max(seq) FROM events WHERE job_id = a.job_id AND attempt = a.attempt
    AND COALESCE(from_status, '') <> to_status)
  WHERE a.ended_at IS NOT NULL) AS ended
WHERE end_reason <> noted

-- name: doctor_witness — the events of an attempt are of its host
SELECT e.seq, e.job_id, e.attempt, e.host AS noted, a.host FROM events AS e
JOIN attempts AS a ON a.job_id = e.job_id AND a.attempt = e.attempt WHERE COALESCE(e.host, '') <> a.host

-- name: doctor_unknown_hosts — a host that was granted something had asked for it; what was rebuilt says nothing of hosts
SELECT DISTINCT a.host FROM attempts AS a
JOIN events AS e ON e.job_id = a.job_id AND e.attempt = a.attempt AND e.transition = 'claim'
WHERE COALESCE(e.detail, '') <> 'rebuilt' AND NOT EXISTS (SELECT 1 FROM hosts AS h WHERE h.host = a.host)

-- name: doctor_workers — the host and the error that a job's row names are its last attempt's
SELECT j.job_id, j.name, j.in_manifest, j.attempt FROM jobs AS j
LEFT JOIN attempts AS a ON a.job_id = j.job_id AND a.attempt = j.attempt
WHERE (j.worker_hostname IS NOT NULL AND j.worker_hostname <> COALESCE(a.host, ''))
  OR (j.error IS NOT NULL AND j.error <> COALESCE(a.error, ''))

-- name: doctor_cancels — a cancelled job says of whom, as its last event does
SELECT j.job_id, j.name, j.ended_by, e.detail FROM jobs AS j
JOIN events AS e ON e.seq = (SELECT max(seq) FROM events WHERE job_id = j.job_id
  AND COALESCE(from_status, '') <> to_status)
WHERE j.status = 'cancelled' AND e.detail IS NOT NULL AND COALESCE(j.ended_by, '') <> e.detail

-- name: doctor_avoids — the host that a job avoids for a while is one that had it; '*' is all of them
SELECT job_id, name, in_manifest, avoid_host FROM jobs AS j WHERE (avoid_host = '' AND avoid_until IS NOT NULL)
  OR (avoid_host <> '' AND (avoid_until IS NULL
    OR avoid_host <> '*' AND NOT EXISTS (SELECT 1 FROM attempts AS a WHERE a.job_id = j.job_id AND a.host = j.avoid_host)))

-- name: doctor_readoptions — an attempt was taken up again as often as events say
SELECT * FROM (
  SELECT a.job_id, a.attempt, a.readoptions, (SELECT count(*) FROM events AS e
    WHERE e.job_id = a.job_id AND e.attempt = a.attempt AND e.transition = 'readopt') AS noted
  FROM attempts AS a
  WHERE NOT EXISTS (SELECT 1 FROM removals AS g WHERE g.what = 'events' AND g.newest >= a.granted_at)) AS readopted
WHERE readoptions <> noted

-- name: doctor_deaths — what died at once on a host is an ended attempt of it
SELECT d.host, d.job_id, d.attempt FROM deaths AS d WHERE NOT EXISTS (SELECT 1 FROM attempts AS a
  WHERE a.job_id = d.job_id AND a.attempt = d.attempt AND a.host = d.host AND a.ended_at IS NOT NULL)

-- name: doctor_lines — a piece of output has as many lines as it says
SELECT job_id, attempt, first, count, length(text) - length(replace(text, char(10), '')) + 1 AS lines
FROM log_chunks WHERE count <> length(text) - length(replace(text, char(10), '')) + 1

-- name: doctor_curves — a point of a curve was told by a line that is stored
SELECT p.job_id, p.attempt, p.epoch, p.line, a.log_next FROM curve_points AS p
JOIN attempts AS a ON a.job_id = p.job_id AND a.attempt = p.attempt WHERE p.line >= a.log_next OR p.line < 0

-- name: doctor_removals — what retention took away is something that was there
SELECT g.what, g.subject, g.number FROM removals AS g WHERE
  (g.what IN ('log', 'curve') AND NOT EXISTS (SELECT 1 FROM attempts AS a
    WHERE a.job_id = g.subject AND a.attempt = g.number AND a.ended_at IS NOT NULL))
  OR (g.what = 'bundle' AND NOT EXISTS (SELECT 1 FROM artifacts AS r
    WHERE g.subject = r.model || '_' || r.mode || '/' || r.artifact_id))
  OR (g.what = 'events' AND g.number >= (SELECT min(seq) FROM events))
  OR g.what NOT IN ('bundle', 'log', 'curve', 'events', 'dataset')

-- name: doctor_specs — what each job is, beside what follows from it
SELECT j.job_id, j.name, j.spec, j.priority, j.model, j.mode, j.ram_above_gib, j.vram_above_gib, c.needs FROM jobs AS j
LEFT JOIN classes AS c ON c.class_id = j.class_id

-- name: doctor_records — what each attempt was granted and what its worker said, beside what follows from that
SELECT a.job_id, a.attempt, a.granted, a.record, a.data_digest, a.code_digest, a.training_commit, j.spec
FROM attempts AS a JOIN jobs AS j ON j.job_id = a.job_id

-- name: doctor_grown — how many rows there are of what only ever becomes more
SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT count(*) FROM attempts) AS attempts,
  (SELECT count(*) FROM events) AS events, (SELECT COALESCE(sum(count), 0) FROM log_chunks) AS lines,
  (SELECT COALESCE(sum(count), 0) FROM log_files WHERE gone IS NULL) AS filed,
  (SELECT count(*) FROM audit) AS audit, (SELECT count(*) FROM hosts) AS hosts

-- name: doctor_deliveries — what must be in the store, and which of it completed its attempt
SELECT r.artifact_id, r.job_id, r.attempt, r.model, r.mode, r.size, r.stored_at, j.name, j.in_manifest,
  a.claim_id, a.generation, a.host, a.instance_id, a.granted_at,
  COALESCE(a.end_reason, '') = 'completed' AND a.artifact_id = r.artifact_id AS accepted,
  COALESCE(j.status = 'completed' AND j.attempt = r.attempt, 0) AS current, s.report, s.bytes AS report_bytes,
  g.at AS removed_at, g.why AS removed_why, g.done_at AS removed_done
FROM artifacts AS r LEFT JOIN attempts AS a ON a.job_id = r.job_id AND a.attempt = r.attempt
LEFT JOIN results AS s ON s.job_id = r.job_id AND s.attempt = r.attempt AND a.artifact_id = r.artifact_id
LEFT JOIN jobs AS j ON j.job_id = r.job_id
LEFT JOIN gone_bundles AS g ON g.subject = r.model || '_' || r.mode || '/' || r.artifact_id
ORDER BY r.seq

-- name: doctor_output_kept — lines are in a file, or there is a reason why they are not
SELECT job_id, attempt, first FROM log_files WHERE (gone IS NULL) <> (sha256 IS NOT NULL)

-- name: stored_logs — the files of output that must be in the store
SELECT f.*, j.name FROM log_files AS f LEFT JOIN jobs AS j ON j.job_id = f.job_id WHERE f.gone IS NULL
ORDER BY f.job_id, f.attempt, f.first

-- name: going_logs — the files of output that may still be there
SELECT * FROM log_files WHERE gone IS NOT NULL AND bytes > 0

-- name: without_output — attempts of which nothing was printed, as far as the tables know
SELECT job_id, attempt, claim_id FROM attempts WHERE log_next = 0

-- name: doctor_claims — whose parts may lie in the store
SELECT claim_id FROM attempts UNION SELECT claim_id FROM unconfirmed

-- name: rebuilt_number — the next grant of a job is to be this attempt and generation, as its provenance says
UPDATE jobs SET attempt = :attempt, generation = :generation, passed_over = 0 WHERE job_id = :job_id AND status = 'pending'

-- name: rebuilt_mark — a grant that was made up from a provenance file; before it there may be gaps
UPDATE events SET detail = :detail WHERE job_id = :job_id AND transition = 'claim' AND attempt = :attempt

-- name: void_every_invitation — codes of an older copy may have been used since
DELETE FROM invitations WHERE used_by IS NULL

-- name: add_restore — a restore or rebuild: work that was granted since the backup is not known here
INSERT INTO restores (at) VALUES (:now)

-- name: unconfirmed_bundles — they are in the store, and no attempt's
SELECT j.model || '_' || j.mode || '/' || u.artifact_id || '/bundle.tar.zst' AS path
FROM unconfirmed AS u JOIN jobs AS j ON j.job_id = u.job_id

-- name: be_database — a database rebuilt from a store is the one that filled it
UPDATE identity SET database_id = :database_id WHERE one = 1
