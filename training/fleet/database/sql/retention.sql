-- The statements of retention, named, with one line of why.

-- name: bundle_facts — every delivery of a bundle that is in the store, with what its job makes of it now
SELECT * FROM kept_bundles ORDER BY seq

-- name: bundle_facts_of — the same of one
SELECT * FROM kept_bundles WHERE artifact_id = :artifact_id ORDER BY seq

-- name: validation_figure — the best figure on the curve that led to an attempt; where epochs were gone over again, theirs
WITH begun AS (SELECT p.attempt, min(p.epoch) AS first FROM curve_points AS p
    JOIN attempts AS a ON a.job_id = p.job_id AND a.attempt = p.attempt
    WHERE p.job_id = :job_id AND p.attempt <= :attempt AND a.generation = :generation GROUP BY p.attempt),
  told AS (SELECT attempt,
      min(first) OVER (ORDER BY attempt ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS below FROM begun)
SELECT max(p.metric) AS figure FROM told JOIN curve_points AS p ON p.job_id = :job_id AND p.attempt = told.attempt
  AND (told.below IS NULL OR p.epoch < told.below)

-- name: old_logs — attempts whose output is kept though they ended before a time
SELECT * FROM (SELECT a.job_id, a.attempt, a.ended_at, j.name, j.status, j.held_at,
    (SELECT COALESCE(sum(length(text)), 0) FROM log_chunks AS c WHERE c.job_id = a.job_id AND c.attempt = a.attempt)
    + (SELECT COALESCE(sum(bytes), 0) FROM log_files AS f WHERE f.job_id = a.job_id AND f.attempt = a.attempt
      AND f.gone IS NULL) AS size
  FROM attempts AS a JOIN jobs AS j ON j.job_id = a.job_id
  WHERE a.ended_at < :before AND a.log_next > 0) AS printed
WHERE size > 0

-- name: old_curves — the same of curves, and of what they used
SELECT a.job_id, a.attempt, a.ended_at, j.name, j.status, j.held_at, 48 * (
  (SELECT count(*) FROM curve_points AS p WHERE p.job_id = a.job_id AND p.attempt = a.attempt)
  + (SELECT count(*) FROM usage_samples AS s WHERE s.job_id = a.job_id AND s.attempt = a.attempt)) AS size
FROM attempts AS a JOIN jobs AS j ON j.job_id = a.job_id
WHERE a.ended_at < :before
  AND (EXISTS (SELECT 1 FROM curve_points AS p WHERE p.job_id = a.job_id AND p.attempt = a.attempt)
    OR EXISTS (SELECT 1 FROM usage_samples AS s WHERE s.job_id = a.job_id AND s.attempt = a.attempt))

-- name: is_settled — that job has ended, and nobody holds it
SELECT job_id, generation FROM jobs
WHERE job_id = :job_id AND status IN ('completed', 'failed', 'cancelled') AND held_at IS NULL

-- name: log_length — how many lines of an attempt have come
SELECT log_next FROM attempts WHERE job_id = :job_id AND attempt = :attempt

-- name: forget_curve — an attempt's epochs
DELETE FROM curve_points WHERE job_id = :job_id AND attempt = :attempt

-- name: forget_samples — and what it used of its host
DELETE FROM usage_samples WHERE job_id = :job_id AND attempt = :attempt

-- name: keep_figure — what the curve says of the attempts that it led to is asked for when it is gone
UPDATE attempts SET figure = :figure WHERE job_id = :job_id AND attempt = :attempt AND figure IS NULL

-- name: completed_attempts — those that left a model
SELECT attempt, generation FROM attempts WHERE job_id = :job_id AND end_reason = 'completed' AND figure IS NULL

-- name: oldest_events — the first so many that are older than a time; never of the newest, which pages show, nor of those
-- that notices are yet to be made of
SELECT max(seq) AS last, count(*) AS n, max(at) AS newest FROM events
WHERE seq < (SELECT min(seq) FROM events) + :most
  AND seq < COALESCE((SELECT min(seq) FROM events WHERE at >= :before), 9223372036854775807)
  AND seq <= (SELECT max(seq) FROM events) - :kept
  AND seq <= COALESCE((SELECT events FROM notice_cursor WHERE one = 1), 9223372036854775807)

-- name: forget_events — up to this one
DELETE FROM events WHERE seq <= :last

-- name: add_removal — retention took something away; what stands in a file goes from there next
INSERT INTO removals (at, what, subject, number, size, why, newest, done_at)
VALUES (:at, :what, :subject, :number, :size, :why, :newest, :done_at)
ON CONFLICT (what, subject, number) WHERE back_at IS NULL DO NOTHING

-- name: widen_removal — more of the oldest events went
UPDATE removals SET at = :at, number = :number, why = :why, newest = :newest WHERE what = 'events'

-- name: removal_back — the same bundle or data set came again
UPDATE removals SET back_at = :now WHERE what = :what AND subject = :subject AND back_at IS NULL

-- name: unfinished_removals — whose files are yet to go
SELECT seq, at, what, subject, size, why FROM removals
WHERE seq > :after AND done_at IS NULL AND back_at IS NULL ORDER BY seq LIMIT :most

-- name: standing_removal — one of these is still to go
SELECT seq FROM removals WHERE seq = :seq AND done_at IS NULL AND back_at IS NULL

-- name: finish_removal — its file is gone
UPDATE removals SET done_at = :now WHERE seq = :seq AND back_at IS NULL

-- name: removal — when and why something went; no row where it did not
SELECT at, why, size, done_at FROM removals
WHERE what = :what AND subject = :subject AND number = :number AND back_at IS NULL

-- name: removals_of_job — what went of a job
SELECT what, number, at, why FROM removals
WHERE what IN ('log', 'curve') AND subject = :job_id AND back_at IS NULL
UNION ALL SELECT 'bundle', r.attempt, g.at, g.why FROM artifacts AS r JOIN gone_bundles AS g ON g.subject = r.model || '_' || r.mode || '/' || r.artifact_id
WHERE r.job_id = :job_id ORDER BY 3

-- name: dataset_users — which data sets jobs name; of each, if one of them may need it yet, and when the last ended
SELECT json_extract(spec, '$.dataset') AS dataset_id,
  max(in_manifest = 1 OR status IN ('pending', 'claimed', 'running') OR held_at IS NOT NULL) AS needed,
  max(finished_at) AS used_at
FROM jobs WHERE json_extract(spec, '$.dataset') IS NOT NULL GROUP BY json_extract(spec, '$.dataset')

-- name: removed_models — completed jobs whose model is gone
SELECT j.name, g.at, g.why
FROM jobs AS j JOIN gone_bundles AS g ON g.subject = j.model || '_' || j.mode || '/' || j.artifact_id WHERE j.status = 'completed' ORDER BY j.seq
