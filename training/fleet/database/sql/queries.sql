-- Every statement of the receiver, named, with one line of why. Portable: `:name` parameters, no dialect.

-- name: database_id — which database this is: of everything it grants, and of every answer
SELECT database_id FROM identity WHERE one = 1

-- name: edition — which plan is in force: jobs of a later one are being written, and are not granted
SELECT edition FROM plan_in_force WHERE one = 1

-- name: move_edition — a plan is written, and comes into force
INSERT INTO plan_in_force (one, edition) VALUES (1, :edition) ON CONFLICT (one) DO UPDATE SET edition = excluded.edition

-- name: half_written — jobs in a list (JSON) of a plan that did not come into force
SELECT job_id FROM jobs WHERE job_id IN (SELECT value FROM json_each(:ids)) AND edition > coalesce((SELECT edition FROM plan_in_force WHERE one = 1), 0)

-- name: class_of — the requirement class of these needs, if any job ever had them
SELECT class_id FROM classes WHERE needs = :needs

-- name: class_text — the needs and the work of a class
SELECT needs FROM classes WHERE class_id = :class_id

-- name: add_class — a new form of needs
INSERT INTO classes (needs) VALUES (:needs)

-- name: forget_classes — no job has them any more; the newest stays, so that no number is given twice
DELETE FROM classes WHERE class_id NOT IN (SELECT class_id FROM jobs) AND class_id < (SELECT max(class_id) FROM classes)

-- name: pending_classes — the classes that have a pending job
SELECT class_id, needs FROM classes AS c
WHERE EXISTS (SELECT 1 FROM waiting WHERE class_id = c.class_id)
ORDER BY class_id

-- name: head — the best pending job of a class and gate below a priority that a host may have; one step into an index
SELECT seq, job_id, name, priority, claimable_at FROM waiting
WHERE class_id = :class_id AND avoid_host = :avoid_host AND (avoid_host <> :host OR ended_by IS NULL)
  AND priority < :below
ORDER BY priority DESC, claimable_at, seq LIMIT 1

-- name: waiting_kinds — what waits, by class, gate and priority: how many, and since when the oldest
SELECT class_id, avoid_host, priority, count(*) AS n, min(claimable_at) AS since FROM waiting
GROUP BY class_id, avoid_host, priority

-- name: waiting_of_kind — how many jobs of a class, gate and priority wait, of very many so many
SELECT count(*) AS n FROM (SELECT 1 FROM waiting
  WHERE class_id = :class_id AND avoid_host = :avoid_host AND priority = :priority
  LIMIT :most)

-- name: attempts_live — what runs, for schedule and forecast
SELECT a.claim_id, a.host, a.heard_s, a.held_s, a.paused, a.progress, a.granted_at, a.booked, j.job_id, j.name,
       j.priority, j.grants, j.class_id, c.needs,
  NOT EXISTS (SELECT 1 FROM attempts AS b WHERE b.job_id = a.job_id AND b.generation = a.generation
    AND (b.host = a.host OR b.resumable) AND b.attempt < a.attempt) AS afresh
FROM attempts AS a JOIN jobs AS j ON j.job_id = a.job_id JOIN classes AS c ON c.class_id = j.class_id
WHERE a.ended_at IS NULL ORDER BY a.host LIMIT :most

-- name: gates — hosts that some job of a class avoids for now ('' is the open gate); few, because failures are rare
WITH avoiding AS MATERIALIZED (  -- grouped afterwards, or the planner walks jobs_ready in group order instead
  SELECT class_id, avoid_host, avoid_until, ended_by FROM waiting
  WHERE avoid_host <> '' AND avoid_until > 0 AND (avoid_until > :now OR ended_by IS NOT NULL))
SELECT class_id, avoid_host, min(avoid_until) AS until, count(ended_by) AS unheard FROM avoiding
GROUP BY class_id, avoid_host

-- name: open_gates — a job that need not avoid its host any longer waits with all others again
UPDATE jobs SET avoid_host = '', avoid_until = NULL
WHERE status = 'pending' AND avoid_host <> '' AND avoid_until <= :now AND ended_by IS NULL

-- name: opinions_due — jobs that one host alone would have failed, and that others were asked to try for long enough
SELECT * FROM jobs
WHERE status = 'pending' AND avoid_host <> '' AND avoid_until <= :now AND ended_by IS NOT NULL ORDER BY seq

-- name: job — one job with all its columns
SELECT * FROM jobs WHERE job_id = :job_id

-- name: job_shown — one job as lists show it
SELECT * FROM jobs_shown WHERE job_id = :job_id

-- name: job_names — what a name or a prefix of an id may mean; a name, first of all the job of the plan
SELECT job_id, name FROM jobs
WHERE job_id = :ref OR (job_id >= :ref AND job_id < :ref_end) OR (name = :ref AND (in_manifest = 1
  OR NOT EXISTS (SELECT 1 FROM jobs AS planned WHERE planned.name = :ref AND planned.in_manifest = 1)))
ORDER BY job_id = :ref DESC, name = :ref DESC, seq LIMIT 20

-- name: jobs_near — the others that a call which names a job by this text nearly hit
SELECT count(*) AS n FROM jobs
WHERE job_id <> :job_id AND ((job_id >= :ref AND job_id < :ref_end) OR (name >= :ref AND name < :ref_end))

-- name: jobs_page — a page of jobs by arrival
SELECT *, '' AS word, seq AS number FROM jobs_shown WHERE seq > :seq ORDER BY seq LIMIT :most

-- name: jobs_found — a page of the jobs that filters ('' lets all) let through, behind a place
WITH page AS MATERIALIZED (  -- out of one index alone
  SELECT seq, CASE :sort WHEN 'name' THEN name ELSE '' END AS word,
    CASE :sort WHEN 'name' THEN 0 WHEN 'priority' THEN -priority WHEN 'arrival' THEN seq
      ELSE -COALESCE(finished_at, claimed_at, created_at) END AS number
  FROM jobs
  WHERE (:status = '' OR status = :status OR (:status = 'held' AND status = 'pending' AND held_at IS NOT NULL))
    AND (:model = '' OR model = :model) AND (:mode = '' OR mode = :mode)
    AND (:host = '' OR (worker_hostname = :host AND status <> 'pending'))
    AND (:text = '' OR name LIKE :text ESCAPE '\')
    AND (:present = '' OR (status <> 'cancelled' AND (in_manifest = 1 OR status <> 'completed')))
    AND (:seq = 0 OR (CASE :sort WHEN 'name' THEN name ELSE '' END,
      CASE :sort WHEN 'name' THEN 0 WHEN 'priority' THEN -priority WHEN 'arrival' THEN seq
        ELSE -COALESCE(finished_at, claimed_at, created_at) END, seq) > (:word, :number, :seq))
  ORDER BY word, number, seq LIMIT :most)
SELECT j.*, page.word, page.number FROM page, jobs_shown AS j WHERE j.seq = page.seq
ORDER BY page.word, page.number, page.seq

-- name: jobs_chosen — what an act needs of the jobs that all filters let through
SELECT job_id, name, status, claimed_at, held_at, in_manifest FROM jobs
WHERE (:status = '' OR status = :status OR (:status = 'held' AND status = 'pending' AND held_at IS NOT NULL))
  AND (:model = '' OR model = :model) AND (:mode = '' OR mode = :mode)
  AND (:host = '' OR (worker_hostname = :host AND status <> 'pending'))
  AND (:text = '' OR name LIKE :text ESCAPE '\')
  AND (:present = '' OR (status <> 'cancelled' AND (in_manifest = 1 OR status <> 'completed')))
ORDER BY seq LIMIT :most

-- name: jobs_counted — how many jobs there are of each kind, in the order of their index
SELECT model, mode, status, worker_hostname AS host, in_manifest, count(*) AS n FROM jobs
GROUP BY model, mode, status, worker_hostname, in_manifest

-- name: jobs_counted_named — the same of those whose name has a text in it
SELECT model, mode, status, worker_hostname AS host, in_manifest, count(*) AS n FROM jobs
WHERE name LIKE :text ESCAPE '\' GROUP BY model, mode, status, worker_hostname, in_manifest

-- name: jobs_live — what runs now, longest first
SELECT * FROM jobs_shown WHERE status IN ('claimed', 'running') ORDER BY claimed_at, seq LIMIT :most

-- name: jobs_waiting — those that a forecast is made of, in the order in which they are granted
SELECT j.job_id, j.name, j.priority, j.class_id, j.in_manifest, c.needs,
  CASE WHEN j.ended_by IS NULL THEN '' ELSE j.avoid_host END AS not_on
FROM waiting AS j JOIN classes AS c ON c.class_id = j.class_id
ORDER BY j.priority DESC, j.claimable_at, j.seq LIMIT :most

-- name: waiting_by_class — how many jobs of each requirement class and gate wait; into an index alone
SELECT class_id, avoid_host, count(*) AS n FROM waiting GROUP BY class_id, avoid_host

-- name: waiting_first — those of a class and gate that are next
SELECT name, job_id, in_manifest FROM waiting WHERE class_id = :class_id AND avoid_host = :avoid_host
ORDER BY priority DESC, claimable_at, seq LIMIT :most

-- name: jobs_asked — jobs that one host alone would have failed, and that others must try first
SELECT * FROM jobs_shown WHERE job_id IN (
  SELECT job_id FROM waiting WHERE avoid_host <> '' AND avoid_until > 0 AND ended_by IS NOT NULL)
ORDER BY seq LIMIT :most

-- name: kinds_trained_on — whether completed jobs of the plan can differ in what they were trained on
SELECT count(DISTINCT a.data_digest) AS data, count(DISTINCT a.code_digest) AS code FROM jobs AS j
JOIN attempts AS a ON a.job_id = j.job_id AND a.attempt = j.attempt
WHERE j.status = 'completed' AND j.in_manifest = 1

-- name: trained_on — what each of them was trained on
SELECT j.name, j.spec, a.data_digest, a.code_digest, a.training_commit FROM jobs AS j
JOIN attempts AS a ON a.job_id = j.job_id AND a.attempt = j.attempt
WHERE j.status = 'completed' AND j.in_manifest = 1 ORDER BY j.seq

-- name: plan_datasets — what the names of data sets stood for when the plan was taken over
SELECT name, dataset_id FROM plan_datasets ORDER BY name

-- name: forget_plan_datasets — a plan is taken over
DELETE FROM plan_datasets

-- name: add_plan_dataset — it names this one
INSERT INTO plan_datasets (name, dataset_id) VALUES (:name, :dataset_id)

-- name: jobs_that_matter — those of the plan, and others that are not finished
SELECT * FROM jobs WHERE in_manifest = 1 OR status IN ('pending', 'claimed', 'running') ORDER BY seq

-- name: counts — how many jobs stand where
SELECT status, count(*) AS n FROM jobs GROUP BY status

-- name: add_job — a job that the manifest brought
INSERT INTO jobs (job_id, name, spec, class_id, priority, status, created_at, claimable_at, model, mode)
VALUES (:job_id, :name, :spec, :class_id, :priority, 'pending', :now, :now, :model, :mode)
ON CONFLICT (job_id) DO NOTHING

-- name: job_texts — what a reload compares of the jobs in a list (JSON), some hundred at once
SELECT seq, job_id, name, spec, in_manifest, ram_above_gib, vram_above_gib FROM jobs
WHERE job_id IN (SELECT value FROM json_each(:ids))

-- name: plan_texts — the same of all that the last plan named, at once: asked for one by one they take seconds
SELECT job_id, name, spec, in_manifest FROM jobs WHERE in_manifest = 1

-- name: plan_ids — which jobs the last plan named
SELECT job_id FROM jobs WHERE in_manifest = 1

-- name: amend_job — a reload changes all that is not a job's identity
UPDATE jobs SET name = :name, spec = :spec, class_id = :class_id, priority = :priority, in_manifest = 1, passed_over = 0,
  model = :model, mode = :mode
WHERE seq = :seq

-- name: mark_in_manifest — a job that had been removed is back
UPDATE jobs SET in_manifest = 1, passed_over = 0 WHERE job_id = :job_id

-- name: cancelled_in_plan — jobs of the plan that no host trains before they are requeued
SELECT * FROM jobs WHERE status = 'cancelled' AND in_manifest = 1 ORDER BY seq

-- name: mark_removed — a job no longer in the manifest stays until it is cancelled
UPDATE jobs SET in_manifest = 0, passed_over = :passed_over WHERE job_id = :job_id

-- name: grant — pending → claimed; the guard cannot fail inside the deciding transaction
UPDATE jobs SET status = 'claimed', attempt = attempt + 1, grants = grants + 1, claim_id = :claim_id,
  worker_hostname = :host, claimed_at = :now, heartbeat_at = :now, error = NULL, ended_by = NULL, failed_by = NULL,
  avoid_host = '', avoid_until = NULL
WHERE job_id = :job_id AND status = 'pending' AND held_at IS NULL AND passed_over = 0
  AND edition <= coalesce((SELECT edition FROM plan_in_force WHERE one = 1), 0)
RETURNING *

-- name: add_attempt — the grant's own row
INSERT INTO attempts (job_id, attempt, claim_id, generation, host, instance_id, session_id, slot, request_id,
  granted_at, granted, booked)
VALUES (:job_id, :attempt, :claim_id, :generation, :host, :instance_id, :session_id, :slot, :request_id, :now,
  :granted, :booked)
RETURNING *

-- name: class_of_job — the class of a job, and how often it was granted
SELECT class_id, attempt FROM jobs WHERE job_id = :job_id

-- name: booked_last — what a job's last attempt was booked for
SELECT booked FROM attempts WHERE job_id = :job_id ORDER BY attempt DESC LIMIT 1

-- name: pending_up_to — how many jobs wait, counted no further than it matters
SELECT count(*) AS n FROM (SELECT 1 FROM waiting LIMIT :most)

-- name: hand_on — a session that began again goes on with what the one before had asked for
UPDATE attempts SET session_id = :session_id WHERE claim_id = :claim_id AND ended_at IS NULL

-- name: attempt_by_claim — whom a claim id names
SELECT * FROM attempts WHERE claim_id = :claim_id

-- name: attempt_by_request — what was granted to this request before
SELECT * FROM attempts WHERE host = :host AND request_id = :request_id

-- name: live_attempts_of_host — what a host holds now
SELECT * FROM attempts WHERE host = :host AND ended_at IS NULL ORDER BY granted_at

-- name: had_company — another attempt that a host held between these times
SELECT 1 FROM attempts WHERE host = :host AND claim_id <> :claim_id AND granted_at <= :until
  AND (ended_at IS NULL OR ended_at >= :since) LIMIT 1

-- name: live_jobs_by_host — names of the jobs that hosts hold now
SELECT a.host, j.name FROM attempts AS a JOIN jobs AS j ON j.job_id = a.job_id
WHERE a.ended_at IS NULL ORDER BY a.granted_at

-- name: attempts_timed — the newest completed attempts that no earlier one had begun, with what their workers measured
SELECT COALESCE((SELECT max(e.seq) FROM events AS e WHERE e.job_id = a.job_id AND e.attempt = a.attempt
    AND e.to_status = 'completed'), 0) AS seq, a.rowid AS age, a.host,
  json_remove(a.granted, '$.name', '$.job_id', '$.seed') AS job,
  CASE WHEN json_type(a.record, '$.train_s') IN ('integer', 'real') THEN json_extract(a.record, '$.train_s') END AS train_s,
  CASE WHEN json_type(a.record, '$.max_rss_kib') IN ('integer', 'real') THEN json_extract(a.record, '$.max_rss_kib') END AS max_rss_kib,
  CASE WHEN json_type(a.record, '$.max_vram_kib') IN ('integer', 'real') THEN json_extract(a.record, '$.max_vram_kib') END AS max_vram_kib,
  a.booked
FROM attempts AS a
WHERE a.end_reason = 'completed' AND a.record IS NOT NULL
  AND json_type(a.record, '$.stretches') IS NULL
  AND NOT EXISTS (SELECT 1 FROM attempts AS b WHERE b.job_id = a.job_id AND b.generation = a.generation
    AND (b.host = a.host OR b.resumable) AND b.attempt < a.attempt)
ORDER BY a.rowid DESC LIMIT :most

-- name: attempts_timed_since — the same of those that completed after an event, in that order
SELECT e.seq, a.host, json_remove(a.granted, '$.name', '$.job_id', '$.seed') AS job,
  CASE WHEN json_type(a.record, '$.train_s') IN ('integer', 'real') THEN json_extract(a.record, '$.train_s') END AS train_s,
  CASE WHEN json_type(a.record, '$.max_rss_kib') IN ('integer', 'real') THEN json_extract(a.record, '$.max_rss_kib') END AS max_rss_kib,
  CASE WHEN json_type(a.record, '$.max_vram_kib') IN ('integer', 'real') THEN json_extract(a.record, '$.max_vram_kib') END AS max_vram_kib,
  a.booked
FROM events AS e JOIN attempts AS a ON a.job_id = e.job_id AND a.attempt = e.attempt
WHERE e.seq > :after AND e.to_status = 'completed' AND a.end_reason = 'completed' AND a.record IS NOT NULL
  AND json_type(a.record, '$.stretches') IS NULL
  AND NOT EXISTS (SELECT 1 FROM attempts AS b WHERE b.job_id = a.job_id AND b.generation = a.generation
    AND (b.host = a.host OR b.resumable) AND b.attempt < a.attempt)
ORDER BY e.seq

-- name: attempt_of_job — one attempt at a job
SELECT * FROM attempts WHERE job_id = :job_id AND attempt = :attempt

-- name: attempts_of_job — the whole history
SELECT * FROM attempts WHERE job_id = :job_id ORDER BY attempt

-- name: beat_job — the live attempt was heard; claimed becomes running
UPDATE jobs SET status = 'running', heartbeat_at = :now WHERE job_id = :job_id AND claim_id = :claim_id

-- name: beat_attempt — progress never goes backwards
UPDATE attempts SET seq = max(seq, :seq), heard_s = :heard_s, held_s = :held_s, paused_s = max(paused_s, :paused_s),
  paused = CASE WHEN seq < :seq THEN :paused ELSE paused END,
  resumable = CASE WHEN seq < :seq THEN :resumable ELSE resumable END,
  progress = CASE WHEN seq < :seq THEN COALESCE(:progress, progress) ELSE progress END
WHERE claim_id = :claim_id

-- name: train_no_more — it delivers, and may take its time
UPDATE attempts SET heard_s = NULL WHERE claim_id = :claim_id AND heard_s IS NOT NULL

-- name: end_attempt — an attempt ends once
UPDATE attempts SET ended_at = :now, end_reason = :reason, error = :error, exit_code = :exit_code,
  artifact_id = :artifact_id, record = COALESCE(:record, record), lived_s = :lived_s,
  out_of_memory = :out_of_memory, crashed = 0, data_digest = :data, code_digest = :code,
  training_commit = :commit
WHERE claim_id = :claim_id AND ended_at IS NULL
RETURNING *

-- name: settle_job — what the policy decided after the end of an attempt
UPDATE jobs SET status = :status, claim_id = NULL, trainer_failures = :trainer_failures,
  host_losses = :host_losses, claimable_at = :claimable_at, avoid_host = :avoid_host,
  avoid_until = :avoid_until, error = :error, ended_by = :ended_by, failed_by = :failed_by, finished_at = :finished_at,
  short_runs = :short_runs
WHERE job_id = :job_id AND claim_id = :claim_id

-- name: widen_job — it ran out of memory, and goes only where there is more
UPDATE jobs SET ram_above_gib = :ram_above_gib, vram_above_gib = :vram_above_gib, class_id = :class_id
WHERE job_id = :job_id

-- name: give_up_job — a waiting job that shall not be tried again by itself
UPDATE jobs SET status = 'failed', finished_at = :now, ended_by = :ended_by, failed_by = :failed_by, avoid_host = '', avoid_until = NULL
WHERE job_id = :job_id AND status = 'pending'

-- name: complete_job — from the live attempt
UPDATE jobs SET status = 'completed', claim_id = NULL, artifact_id = :artifact_id, finished_at = :now,
  worker_hostname = :host, error = NULL, ended_by = NULL, failed_by = NULL
WHERE job_id = :job_id AND claim_id = :claim_id

-- name: deliver_job — by hand, from work that its host had set aside: as if granted and completed in one step
UPDATE jobs SET status = 'completed', attempt = attempt + 1, grants = grants + 1, artifact_id = :artifact_id,
  worker_hostname = :host, claimed_at = :now, finished_at = :now, error = NULL, ended_by = NULL, failed_by = NULL, avoid_host = '',
  avoid_until = NULL
WHERE job_id = :job_id AND status = 'pending' AND attempt = :before

-- name: adopt_job — from the last attempt, though its host had been given up; a loss that was pardoned cost nothing
UPDATE jobs SET status = 'completed', artifact_id = :artifact_id, finished_at = :now,
  worker_hostname = :host, error = NULL, ended_by = NULL, failed_by = NULL, host_losses = max(host_losses - (
    SELECT 1 - a.pardoned FROM attempts AS a WHERE a.job_id = :job_id AND a.attempt = :attempt), 0),
  avoid_host = '', avoid_until = NULL
WHERE job_id = :job_id AND status = 'pending' AND attempt = :attempt

-- name: adopt_attempt — the loss is taken back: it was completed
UPDATE attempts SET ended_at = :now, end_reason = 'completed', artifact_id = :artifact_id, error = NULL, pardoned = 0,
  record = COALESCE(:record, record), data_digest = :data, code_digest = :code, training_commit = :commit
WHERE claim_id = :claim_id AND end_reason = 'host_lost'
RETURNING *

-- name: readopt_job — a host given up for lost was heard again, and the loss is given back, unless it was pardoned
UPDATE jobs SET status = 'running', claim_id = :claim_id, worker_hostname = :host, heartbeat_at = :now,
  host_losses = max(host_losses - (
    SELECT 1 - a.pardoned FROM attempts AS a WHERE a.job_id = :job_id AND a.attempt = :attempt), 0), error = NULL, ended_by = NULL, failed_by = NULL, avoid_host = '',
  avoid_until = NULL
WHERE job_id = :job_id AND status = 'pending' AND attempt = :attempt
RETURNING *

-- name: readopt_attempt — it lives again, and what it comes to next is not pardoned yet
UPDATE attempts SET ended_at = NULL, end_reason = NULL, error = NULL, readoptions = readoptions + 1,
  lived_s = NULL, crashed = 0, pardoned = 0
WHERE claim_id = :claim_id AND end_reason = 'host_lost'
RETURNING *

-- name: cancel_job — the operator's word; final. A failed job of the plan stays what it is: it is to be seen
UPDATE jobs SET status = 'cancelled', claim_id = NULL, finished_at = :now, error = NULL,
  ended_by = :ended_by, failed_by = NULL, avoid_host = '', avoid_until = NULL
WHERE job_id = :job_id
  AND (status IN ('pending', 'claimed', 'running') OR (status = 'failed' AND in_manifest = 0))

-- name: requeue_job — a new generation: budgets reset, history kept
UPDATE jobs SET status = 'pending', claim_id = NULL, generation = generation + 1, grants = 0,
  trainer_failures = 0, host_losses = 0, claimable_at = :now, finished_at = NULL, artifact_id = NULL,
  error = NULL, ended_by = NULL, failed_by = NULL, heartbeat_at = NULL, worker_hostname = NULL, claimed_at = NULL,
  avoid_host = '', avoid_until = NULL, short_runs = 0, ram_above_gib = 0, vram_above_gib = 0, class_id = :class_id,
  passed_over = 0
WHERE job_id = :job_id

-- name: hold_job — the operator keeps it from being granted, from the event just noted on
UPDATE jobs SET held_by = :by, held_at = (SELECT at FROM events WHERE seq = (SELECT max(seq) FROM events))
WHERE job_id = :job_id

-- name: unhold_job — it may be granted again
UPDATE jobs SET held_by = NULL, held_at = NULL WHERE job_id = :job_id AND held_at IS NOT NULL

-- name: held_pending — how many jobs would wait for a host if no operator held them
SELECT count(*) AS n FROM jobs WHERE status = 'pending' AND held_at IS NOT NULL

-- name: passed_over — jobs that would wait for a host if the plan named them; how many, and the first of them
SELECT count(*) OVER () AS n, name, job_id, in_manifest FROM jobs
WHERE passed_over = 1 AND status = 'pending' AND held_at IS NULL ORDER BY seq LIMIT :most

-- name: held_found — the same of those that all other filters let through; a job that waits has no host
SELECT count(*) AS n FROM jobs WHERE status = 'pending' AND held_at IS NOT NULL
  AND (:model = '' OR model = :model) AND (:mode = '' OR mode = :mode) AND (:host = '')
  AND (:text = '' OR name LIKE :text ESCAPE '\')

-- name: stale — live attempts that were not heard since
SELECT * FROM jobs
WHERE status IN ('claimed', 'running') AND heartbeat_at < :before ORDER BY heartbeat_at

-- name: shift_jobs — the wall clock stepped: times after :since move along, but not beyond what they can be
UPDATE jobs SET heartbeat_at = min(heartbeat_at + :step * (heartbeat_at > :since), :now),
  claimed_at = min(claimed_at + :step * (claimed_at > :since), :now),
  claimable_at = min(claimable_at + :step * (claimable_at > :since), :claimable_max),
  avoid_until = min(avoid_until + :step * (avoid_until > :since), CASE WHEN ended_by IS NULL THEN :avoid_max ELSE :asked_max END)
WHERE status IN ('pending', 'claimed', 'running')

-- name: shift_hosts — as above
UPDATE hosts SET last_seen = min(last_seen + :step * (last_seen > :since), :now)

-- name: newest_time — when anything was noted last; before that the clock cannot be
SELECT max(at) AS at FROM (
  SELECT at FROM (SELECT at FROM events ORDER BY seq DESC LIMIT 1)
  UNION ALL SELECT max(heartbeat_at) FROM jobs WHERE status IN ('claimed', 'running')
  UNION ALL SELECT max(last_seen) FROM hosts) AS noted

-- name: stamped_ahead — whether what the shifts above move is ahead; events keep the time of a clock that was wrong
SELECT EXISTS (SELECT 1 FROM hosts WHERE last_seen > :now) OR EXISTS (SELECT 1 FROM jobs
  WHERE (status IN ('claimed', 'running') AND heartbeat_at > :now)
    OR (status = 'pending' AND claimable_at > :claimable_max)) AS n

-- name: add_event — the witness of a transition, in its own transaction
INSERT INTO events (at, job_id, transition, from_status, to_status, attempt, host, detail)
VALUES (:at, :job_id, :transition, :from_status, :to_status, :attempt, :host, :detail)

-- name: events_newest — a page of what happened, newest first
SELECT * FROM events_named WHERE seq < :before AND (:transition = '' OR transition = :transition)
ORDER BY seq DESC LIMIT :most

-- name: events_newest_of_host — the same for one host
SELECT * FROM events_named WHERE host = :host AND seq < :before AND (:transition = '' OR transition = :transition)
ORDER BY seq DESC LIMIT :most

-- name: events_newest_of_job — the same for one job
SELECT * FROM events_named WHERE job_id = :job_id AND seq < :before
  AND (:transition = '' OR transition = :transition) AND (:host = '' OR host = :host)
ORDER BY seq DESC LIMIT :most

-- name: events_of_job — what happened to a job, oldest first
SELECT seq, at, job_id, transition, from_status, to_status, attempt, host, detail FROM events WHERE job_id = :job_id ORDER BY seq

-- name: note_host — who asked, with what, and when
INSERT INTO hosts (host, capability, instance_id, session_id, first_seen, last_seen, trainer_digests,
  set_aside)
VALUES (:host, :capability, :instance_id, :session_id, :now, :now, :trainer_digests, :set_aside)
ON CONFLICT (host) DO UPDATE SET capability = excluded.capability,
  instance_id = COALESCE(excluded.instance_id, hosts.instance_id),
  session_id = COALESCE(excluded.session_id, hosts.session_id),
  last_seen = excluded.last_seen, set_aside = excluded.set_aside,
  trainer_digests = COALESCE(excluded.trainer_digests, hosts.trainer_digests)

-- name: hosts — all hosts that ever asked, with how many of their models were verified, counted no further than it matters
SELECT h.*, (SELECT count(*) FROM (SELECT 1 FROM attempts WHERE host = h.host AND end_reason = 'completed' LIMIT :counted))
  AS verified FROM hosts AS h ORDER BY host

-- name: spare_hosts — hosts beyond the number that is kept: never given a job, none of a job's work there, silent longest
SELECT host FROM hosts WHERE set_aside IS NULL AND host NOT IN (SELECT host FROM attempts)
ORDER BY last_seen DESC, host LIMIT -1 OFFSET :kept

-- name: forget_host — nothing hangs on it
DELETE FROM hosts WHERE host = :host

-- name: hosts_aside — finished work that lies on hosts undelivered
SELECT host, set_aside FROM hosts WHERE set_aside IS NOT NULL ORDER BY host

-- name: note_crash — the worker says that its host crashed with this attempt in hand
UPDATE attempts SET crashed = 1 WHERE claim_id = :claim_id AND host = :host AND end_reason = 'host_lost'

-- name: add_death — an attempt died at once on a host
INSERT INTO deaths (host, job_id, attempt) VALUES (:host, :job_id, :attempt)

-- name: forget_deaths — something went well there, or it was let in again
DELETE FROM deaths WHERE host = :host

-- name: forget_refusals — two hosts said of a job that it cannot be trained: that speaks against neither
DELETE FROM deaths WHERE job_id = :job_id AND attempt IN (SELECT value FROM json_each(:attempts))

-- name: deaths — what died at once on a host, in a row
SELECT d.job_id, d.attempt, j.name, a.claim_id, a.end_reason, a.error,
  EXISTS (SELECT 1 FROM attempts AS p
    WHERE p.job_id = a.job_id AND p.generation = a.generation AND p.pardoned = 1
      AND p.end_reason <> 'host_lost') AS pardoned_before
FROM deaths AS d
JOIN attempts AS a ON a.job_id = d.job_id AND a.attempt = d.attempt
JOIN jobs AS j ON j.job_id = d.job_id
WHERE d.host = :host ORDER BY d.seq

-- name: pardon_attempt — the host was to blame
UPDATE attempts SET pardoned = 1 WHERE claim_id = :claim_id

-- name: give_back — what pardoned attempts had cost a job
UPDATE jobs SET trainer_failures = :trainer_failures, host_losses = :host_losses WHERE job_id = :job_id

-- name: pardon_job — it waits (again), for any other host
UPDATE jobs SET status = 'pending', claimable_at = min(claimable_at, :now), avoid_host = :avoid_host,
  avoid_until = :avoid_until, error = NULL, ended_by = :ended_by, failed_by = :failed_by, finished_at = NULL
WHERE job_id = :job_id AND status IN ('pending', 'failed')

-- name: quarantines — the hosts that get no jobs now
SELECT host, since, cause, reason FROM quarantines WHERE ended_at IS NULL ORDER BY host

-- name: add_quarantine — a host is taken out
INSERT INTO quarantines (host, since, cause, reason) VALUES (:host, :now, :cause, :reason)

-- name: end_quarantine — it gets jobs again
UPDATE quarantines SET ended_at = :now, ended_by = :ended_by WHERE host = :host AND ended_at IS NULL

-- name: host_orders — the operators' orders that are in force
SELECT host, kind, since, by FROM host_orders WHERE ended_at IS NULL ORDER BY host

-- name: add_host_order — a host gets no jobs until it is resumed
INSERT INTO host_orders (host, kind, since, by) VALUES (:host, :kind, :now, :by)

-- name: end_host_order — it gets jobs again, or another order takes the place of this one
UPDATE host_orders SET ended_at = :now, ended_by = :ended_by WHERE host = :host AND ended_at IS NULL

-- name: add_artifact — a bundle is stored; the same delivery again changes nothing
INSERT INTO artifacts (artifact_id, job_id, attempt, model, mode, size, stored_at)
VALUES (:artifact_id, :job_id, :attempt, :model, :mode, :size, :now)
ON CONFLICT (artifact_id, job_id, attempt) DO NOTHING

-- name: artifacts_of — all that an attempt delivered
SELECT artifact_id FROM artifacts WHERE job_id = :job_id AND attempt = :attempt

-- name: artifact — the first delivery of this bundle
SELECT r.*, g.at AS removed_at, g.why AS removed_why FROM artifacts AS r
LEFT JOIN gone_bundles AS g ON g.subject = r.model || '_' || r.mode || '/' || r.artifact_id
WHERE r.artifact_id = :artifact_id ORDER BY r.seq LIMIT 1

-- name: artifacts — every bundle once, oldest delivery first
SELECT r.artifact_id, r.job_id, r.attempt, r.model, r.mode, r.size, r.stored_at, g.at AS removed_at,
  g.why AS removed_why FROM artifacts AS r
LEFT JOIN gone_bundles AS g ON g.subject = r.model || '_' || r.mode || '/' || r.artifact_id
ORDER BY r.seq

-- name: unconfirmed — what came under a claim that this database did not grant
SELECT * FROM unconfirmed WHERE claim_id = :claim_id

-- name: unconfirmed_share — what is stored of a host's unconfirmed work, apart from one claim's
SELECT count(*) AS n, coalesce(sum(size), 0) AS bytes FROM unconfirmed
WHERE host = :host AND claim_id <> :claim_id AND refused_at IS NULL

-- name: add_unconfirmed — its bundle is stored; another bundle of the same claim is not taken
INSERT INTO unconfirmed (claim_id, job_id, host, artifact_id, size, at)
VALUES (:claim_id, :job_id, :host, :artifact_id, :size, :now)
ON CONFLICT (claim_id) DO UPDATE SET at = :now
WHERE (job_id, host, artifact_id) = (:job_id, :host, :artifact_id) AND refused_at IS NULL

-- name: tell_unconfirmed — its worker has said what completes the job by it
UPDATE unconfirmed SET told = :told,
  from_before = coalesce(:database_id, '') = (SELECT database_id FROM identity) AND EXISTS (SELECT 1 FROM restores)
WHERE claim_id = :claim_id AND told IS NULL

-- name: unconfirmed_work — what waits for an operator's decision: a host's, everything from before a restore, or (NULL) all
SELECT u.claim_id, u.job_id, u.host, u.artifact_id, u.told, u.from_before, j.name, j.model, j.mode
FROM unconfirmed AS u JOIN jobs AS j ON j.job_id = u.job_id
WHERE u.told IS NOT NULL AND j.status NOT IN ('completed', 'cancelled') AND (:host IS NULL OR u.host = :host OR (:before_restore AND u.from_before = 1))
ORDER BY u.host, u.at

-- name: unconfirmed_hosts — whose work waits for an operator's decision, and how much of it
SELECT u.host, count(*) AS n, sum(u.from_before) AS n_before,
  strftime('%Y-%m-%d %H:%M', (SELECT max(at) FROM restores), 'unixepoch') AS restored
FROM unconfirmed AS u JOIN jobs AS j ON j.job_id = u.job_id
WHERE u.told IS NOT NULL AND j.status NOT IN ('completed', 'cancelled') GROUP BY u.host ORDER BY u.host

-- name: refuse_unconfirmed — an operator refused it; its worker is answered so
UPDATE unconfirmed SET refused_at = :now, told = NULL, size = 0 WHERE claim_id = :claim_id

-- name: forget_unconfirmed — its job is completed by it, or it is of no use
DELETE FROM unconfirmed WHERE claim_id = :claim_id

-- name: useless_unconfirmed — its job has ended, or nothing more came of it for long
SELECT u.claim_id, u.artifact_id, j.model, j.mode FROM unconfirmed AS u JOIN jobs AS j ON j.job_id = u.job_id
WHERE j.status IN ('completed', 'cancelled') OR (u.told IS NULL AND coalesce(u.refused_at, u.at) < :before)

-- name: is_bundle_named — an attempt or unconfirmed work has this bundle
SELECT 1 FROM artifacts WHERE artifact_id = :artifact_id AND model = :model AND mode = :mode
UNION ALL SELECT 1 FROM unconfirmed AS u JOIN jobs AS j ON j.job_id = u.job_id
WHERE u.artifact_id = :artifact_id AND u.refused_at IS NULL AND j.model = :model AND j.mode = :mode

-- name: add_log — output lines, in the piece in which they came
INSERT INTO log_chunks (job_id, attempt, first, count, text)
VALUES (:job_id, :attempt, :first, :count, :text)
ON CONFLICT (job_id, attempt, first) DO NOTHING

-- name: move_log_next — how many lines of this attempt are stored
UPDATE attempts SET log_next = :log_next WHERE claim_id = :claim_id

-- name: note_log_total — its trainer has ended, after so many lines
UPDATE attempts SET log_total = :total WHERE claim_id = :claim_id

-- name: correct_log_total — more lines came than were said to be all
UPDATE attempts SET log_total = NULL WHERE claim_id = :claim_id AND log_total < :least

-- name: drop_chunks — these lines are in a file now
DELETE FROM log_chunks WHERE job_id = :job_id AND attempt = :attempt AND first < :end

-- name: logs_due — attempts with many lines outside of files, and ended ones with any, once no more will come
SELECT c.job_id, c.attempt
FROM (SELECT job_id, attempt, sum(count) AS lines FROM log_chunks GROUP BY job_id, attempt) AS c
JOIN attempts AS a ON a.job_id = c.job_id AND a.attempt = c.attempt
WHERE c.lines >= :lines OR (a.ended_at IS NOT NULL AND (a.log_next >= a.log_total OR a.ended_at < :before))
ORDER BY c.lines DESC LIMIT :most

-- name: log_pieces — the rows of an attempt's files that reach beyond a line
SELECT * FROM log_files WHERE job_id = :job_id AND attempt = :attempt AND first + count > :after
ORDER BY first LIMIT :most

-- name: add_log_file — lines are in a file, or not kept
INSERT INTO log_files (job_id, attempt, first, count, raw_bytes, bytes, sha256, gone, gone_at)
VALUES (:job_id, :attempt, :first, :count, :raw_bytes, :bytes, :sha256, :gone, :gone_at)

-- name: lose_log_file — these lines are not kept any more
UPDATE log_files SET sha256 = NULL, gone = :gone, gone_at = :now
WHERE job_id = :job_id AND attempt = :attempt AND first = :first AND gone IS NULL

-- name: log_files_going — files that were not needed for a while
SELECT * FROM log_files WHERE gone IS NOT NULL AND bytes > 0 AND gone_at < :before
ORDER BY gone_at, job_id, attempt, first LIMIT :most

-- name: extend_gap — the row before says the same of its lines, and has no file either
UPDATE log_files SET count = count + :count, raw_bytes = raw_bytes + :raw_bytes
WHERE job_id = :job_id AND attempt = :attempt AND first + count = :first AND gone = :gone AND bytes = 0

-- name: forget_log_file — the row before tells of its lines
DELETE FROM log_files WHERE job_id = :job_id AND attempt = :attempt AND first = :first

-- name: removed_log_file — its file is gone, too
UPDATE log_files SET bytes = 0 WHERE job_id = :job_id AND attempt = :attempt AND first = :first

-- name: log — output lines outside of files, from a line on
SELECT first, count, text FROM log_chunks
WHERE job_id = :job_id AND attempt = :attempt AND first + count > :after ORDER BY first LIMIT :most

-- name: add_point — an epoch that a line of output tells; a later line about it tells what is new
INSERT INTO curve_points (job_id, attempt, epoch, loss, metric, seconds, stage, stage_epoch, metric_name, line)
VALUES (:job_id, :attempt, :epoch, :loss, :metric, :seconds, :stage, :stage_epoch, :metric_name, :line)
ON CONFLICT (job_id, attempt, epoch) DO UPDATE SET loss = COALESCE(excluded.loss, curve_points.loss),
  metric = COALESCE(excluded.metric, curve_points.metric),
  seconds = COALESCE(excluded.seconds, curve_points.seconds), stage = excluded.stage,
  stage_epoch = excluded.stage_epoch, metric_name = COALESCE(excluded.metric_name, curve_points.metric_name),
  line = excluded.line

-- name: hear_point — an epoch that a heartbeat tells before its line has come
INSERT INTO curve_points (job_id, attempt, epoch, loss, metric, seconds, stage, stage_epoch, metric_name)
VALUES (:job_id, :attempt, :epoch, :loss, :metric, :seconds, :stage, :stage_epoch, :metric_name)
ON CONFLICT (job_id, attempt, epoch) DO UPDATE SET loss = COALESCE(excluded.loss, curve_points.loss),
  metric = COALESCE(excluded.metric, curve_points.metric),
  seconds = COALESCE(excluded.seconds, curve_points.seconds) WHERE curve_points.line IS NULL

-- name: count_points — how many epochs of an attempt are kept
SELECT count(*) AS n FROM curve_points WHERE job_id = :job_id AND attempt = :attempt

-- name: thin_points — an attempt has too many epochs: of each bucket the lowest and highest figures stay
WITH span AS MATERIALIZED (SELECT min(epoch) AS first, max(epoch) AS last FROM curve_points
    WHERE job_id = :job_id AND attempt = :attempt),
  bucketed AS MATERIALIZED (SELECT epoch, loss, metric,
      CAST(1.0 * (epoch - first) * :buckets / (last - first + 1) AS INTEGER) AS bucket
    FROM curve_points, span WHERE job_id = :job_id AND attempt = :attempt),
  extremes AS MATERIALIZED (SELECT bucket, min(loss) AS loss_low, max(loss) AS loss_high, min(metric) AS metric_low,
      max(metric) AS metric_high FROM bucketed GROUP BY bucket),
  chosen AS MATERIALIZED (SELECT min(CASE WHEN loss = loss_low THEN epoch END) AS loss_low,
      min(CASE WHEN loss = loss_high THEN epoch END) AS loss_high,
      min(CASE WHEN metric = metric_low THEN epoch END) AS metric_low,
      min(CASE WHEN metric = metric_high THEN epoch END) AS metric_high
    FROM bucketed JOIN extremes USING (bucket) GROUP BY bucket)
DELETE FROM curve_points WHERE job_id = :job_id AND attempt = :attempt AND epoch NOT IN (
  SELECT first FROM span UNION ALL SELECT last FROM span
  UNION ALL SELECT COALESCE(loss_low, -1) FROM chosen UNION ALL SELECT COALESCE(loss_high, -1) FROM chosen
  UNION ALL SELECT COALESCE(metric_low, -1) FROM chosen UNION ALL SELECT COALESCE(metric_high, -1) FROM chosen)

-- name: curve — a job's epochs, where an attempt went over some again those of the last; thinned as above
WITH begun AS (SELECT attempt, min(epoch) AS first FROM curve_points
    WHERE job_id = :job_id AND (:attempt IS NULL OR attempt = :attempt) GROUP BY attempt),
  told AS (SELECT attempt,
      min(first) OVER (ORDER BY attempt ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS below FROM begun),
  whole AS MATERIALIZED (SELECT p.attempt, p.epoch, p.loss, p.metric, p.seconds, p.stage, p.stage_epoch, p.metric_name
    FROM told JOIN curve_points AS p ON p.job_id = :job_id AND p.attempt = told.attempt
      AND (told.below IS NULL OR p.epoch < told.below)),
  span AS MATERIALIZED (SELECT min(epoch) AS first, max(epoch) AS last, count(*) AS n FROM whole),
  bucketed AS MATERIALIZED (SELECT whole.*, CASE WHEN n <= :most THEN epoch
      ELSE CAST(1.0 * (epoch - first) * :buckets / (last - first + 1) AS INTEGER) END AS bucket FROM whole, span),
  extremes AS MATERIALIZED (SELECT bucket, min(loss) AS loss_low, max(loss) AS loss_high, min(metric) AS metric_low,
      max(metric) AS metric_high FROM bucketed GROUP BY bucket),
  chosen AS MATERIALIZED (SELECT min(CASE WHEN loss = loss_low THEN epoch END) AS loss_low,
      min(CASE WHEN loss = loss_high THEN epoch END) AS loss_high,
      min(CASE WHEN metric = metric_low THEN epoch END) AS metric_low,
      min(CASE WHEN metric = metric_high THEN epoch END) AS metric_high
    FROM bucketed JOIN extremes USING (bucket) GROUP BY bucket)
SELECT attempt, epoch, loss, metric, seconds, stage, stage_epoch, metric_name FROM whole WHERE epoch IN (
  SELECT first FROM span UNION ALL SELECT last FROM span
  UNION ALL SELECT loss_low FROM chosen UNION ALL SELECT loss_high FROM chosen
  UNION ALL SELECT metric_low FROM chosen UNION ALL SELECT metric_high FROM chosen) ORDER BY epoch

-- name: curve_spans — which attempts that curve is made of
WITH begun AS (SELECT attempt, min(epoch) AS first FROM curve_points
    WHERE job_id = :job_id AND (:attempt IS NULL OR attempt = :attempt) GROUP BY attempt),
  told AS (SELECT attempt,
      min(first) OVER (ORDER BY attempt ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS below FROM begun)
SELECT p.attempt, count(*) AS n, min(p.epoch) AS first, max(p.epoch) AS last
FROM told JOIN curve_points AS p ON p.job_id = :job_id AND p.attempt = told.attempt
  AND (told.below IS NULL OR p.epoch < told.below)
GROUP BY p.attempt ORDER BY p.attempt

-- name: add_sample — what an attempt used of its host, as a heartbeat says, unless the one before is too near
INSERT INTO usage_samples (job_id, attempt, seq, seconds, cpu, memory_bytes, gpu, gpu_memory_bytes)
SELECT :job_id, :attempt, :seq, :seconds, :cpu, :memory_bytes, :gpu, :gpu_memory_bytes
WHERE COALESCE((SELECT abs(seconds - :seconds) FROM usage_samples WHERE job_id = :job_id AND attempt = :attempt
  ORDER BY seq DESC LIMIT 1), :apart_s) >= :apart_s
ON CONFLICT (job_id, attempt, seq) DO NOTHING

-- name: samples — those of an attempt, thinned as its epochs are
WITH span AS MATERIALIZED (
    SELECT min(seconds) AS first, max(seconds) AS last, max(seq) AS newest, count(*) AS n FROM usage_samples
    WHERE job_id = :job_id AND attempt = :attempt),
  bucketed AS MATERIALIZED (SELECT s.*, CASE WHEN n <= :most THEN seq
      ELSE CAST((s.seconds - first) * :buckets / (last - first + 1) AS INTEGER) END AS bucket
    FROM usage_samples AS s, span WHERE job_id = :job_id AND attempt = :attempt),
  extremes AS MATERIALIZED (SELECT bucket, min(cpu) AS cpu_low, max(cpu) AS cpu_high, min(memory_bytes) AS memory_low,
      max(memory_bytes) AS memory_high, min(gpu) AS gpu_low, max(gpu) AS gpu_high,
      min(gpu_memory_bytes) AS gpu_memory_low, max(gpu_memory_bytes) AS gpu_memory_high
    FROM bucketed GROUP BY bucket),
  chosen AS MATERIALIZED (SELECT min(CASE WHEN cpu = cpu_low THEN seq END) AS cpu_low,
      min(CASE WHEN cpu = cpu_high THEN seq END) AS cpu_high,
      min(CASE WHEN memory_bytes = memory_low THEN seq END) AS memory_low,
      min(CASE WHEN memory_bytes = memory_high THEN seq END) AS memory_high,
      min(CASE WHEN gpu = gpu_low THEN seq END) AS gpu_low,
      min(CASE WHEN gpu = gpu_high THEN seq END) AS gpu_high,
      min(CASE WHEN gpu_memory_bytes = gpu_memory_low THEN seq END) AS gpu_memory_low,
      min(CASE WHEN gpu_memory_bytes = gpu_memory_high THEN seq END) AS gpu_memory_high
    FROM bucketed JOIN extremes USING (bucket) GROUP BY bucket)
SELECT seconds, cpu, memory_bytes, gpu, gpu_memory_bytes FROM bucketed WHERE seq IN (
  SELECT newest FROM span UNION ALL SELECT cpu_low FROM chosen UNION ALL SELECT cpu_high FROM chosen
  UNION ALL SELECT memory_low FROM chosen UNION ALL SELECT memory_high FROM chosen
  UNION ALL SELECT gpu_low FROM chosen UNION ALL SELECT gpu_high FROM chosen
  UNION ALL SELECT gpu_memory_low FROM chosen UNION ALL SELECT gpu_memory_high FROM chosen) ORDER BY seconds, seq

-- name: log_end — the last pieces of an output, last first
SELECT first, count, text FROM log_chunks
WHERE job_id = :job_id AND attempt = :attempt ORDER BY first DESC LIMIT :most

-- name: certificates — everybody who was ever let in
SELECT * FROM certificates ORDER BY issued_at

-- name: certificates_of — everything ever issued to one name
SELECT * FROM certificates WHERE role = :role AND name = :name

-- name: add_certificate — the authority issued one
INSERT INTO certificates (fingerprint, role, name, issued_at, expires_at)
VALUES (:fingerprint, :role, :name, :issued_at, :expires_at)

-- name: revoke_certificates — all of one name
UPDATE certificates SET revoked_at = :now WHERE role = :role AND name = :name AND revoked_at IS NULL

-- name: invitation — what a code's hash stands for
SELECT * FROM invitations WHERE code_sha256 = :code_sha256

-- name: add_invitation — a one-time code was told to the operator
INSERT INTO invitations (code_sha256, role, name, created_at, expires_at)
VALUES (:code_sha256, :role, :name, :now, :expires_at)

-- name: use_invitation — once, though the same request may come again
UPDATE invitations SET used_by = :used_by
WHERE code_sha256 = :code_sha256 AND (used_by IS NULL OR used_by = :used_by) AND expires_at > :now

-- name: void_invitations — open codes of a name that shall not be used any more
DELETE FROM invitations WHERE role = :role AND name = :name AND used_by IS NULL

-- name: forget_invitations — all codes of a name that was put out: a used one serves its request again
DELETE FROM invitations WHERE role = :role AND name = :name

-- name: void_all_invitations — open codes of everybody, when one who may have made them is put out
DELETE FROM invitations WHERE used_by IS NULL

-- name: revoked_by_digest — the certificate or token with this SHA-256, if it was revoked
SELECT fingerprint FROM certificates WHERE fingerprint = :digest AND revoked_at IS NOT NULL
UNION ALL
SELECT token_sha256 FROM tokens WHERE token_sha256 = :digest AND revoked_at IS NOT NULL

-- name: tokens — every operator's or reader's token
SELECT * FROM tokens ORDER BY created_at

-- name: add_token — a token was told to the operator
INSERT INTO tokens (token_sha256, name, created_at, expires_at, role)
VALUES (:token_sha256, :name, :now, :expires_at, :role)

-- name: revoke_token — taken back before its time
UPDATE tokens SET revoked_at = :now WHERE token_sha256 = :token_sha256

-- name: audit_head — what the next row follows
SELECT seq, digest FROM audit ORDER BY seq DESC LIMIT 1

-- name: add_audit — a person or a host acted
INSERT INTO audit (seq, at, who, act, subject, before, after, digest)
VALUES (:seq, :at, :who, :act, :subject, :before, :after, :digest)

-- name: audit_written — how many acts were recorded, whatever became of their rows
SELECT n FROM seals WHERE tbl = 'audit'

-- name: audit_page — acts from a row on
SELECT * FROM audit WHERE seq > :after ORDER BY seq LIMIT :limit

-- name: keep_result — what the report of a completed attempt says; the first one stands
INSERT INTO results (job_id, attempt, report, bytes, figures, test, twin, auroc, auroc_low, auroc_high)
VALUES (:job_id, :attempt, :report, :bytes, :figures, :test, :twin, :auroc, :auroc_low, :auroc_high)
ON CONFLICT DO NOTHING

-- name: result — what the report of an attempt says
SELECT r.report, r.figures, r.auroc, r.auroc_low, r.auroc_high, f.artifact_id, f.model, f.mode, f.size
FROM results AS r JOIN attempts AS a ON a.job_id = r.job_id AND a.attempt = r.attempt
JOIN artifacts AS f ON f.job_id = a.job_id AND f.attempt = a.attempt AND f.artifact_id = a.artifact_id
WHERE r.job_id = :job_id AND r.attempt = :attempt

-- name: results_tests — what the models of completed jobs were judged on, with the newest one's spec; first the plan's
SELECT r.test, count(*) AS n, max(j.finished_at) AS newest, j.spec FROM results AS r
JOIN jobs AS j ON j.job_id = r.job_id AND j.attempt = r.attempt AND j.status = 'completed'
GROUP BY r.test ORDER BY r.test IS NULL, sum(j.in_manifest) DESC, n DESC, newest DESC LIMIT :most

-- name: results_ranked — models judged on one test, the best first, behind a place in that order
SELECT j.job_id, j.name, j.model, j.mode, j.worker_hostname AS host, j.finished_at, j.artifact_id, j.in_manifest,
  j.attempt, r.figures, r.twin, -coalesce(r.auroc, -1) AS place, g.at AS removed_at, g.why AS removed_why
FROM results AS r JOIN jobs AS j ON j.job_id = r.job_id AND j.attempt = r.attempt AND j.status = 'completed'
LEFT JOIN gone_bundles AS g ON g.subject = j.model || '_' || j.mode || '/' || j.artifact_id
WHERE r.test IS :test AND (-coalesce(r.auroc, -1), r.job_id) > (:place, :job_id)
ORDER BY -coalesce(r.auroc, -1), r.job_id LIMIT :most

-- name: result_twin — the newest model that differs from one in its mode alone
SELECT j.name, j.mode, j.in_manifest, j.job_id, r.figures FROM results AS r
JOIN jobs AS j ON j.job_id = r.job_id AND j.attempt = r.attempt AND j.status = 'completed'
WHERE r.twin = :twin AND j.mode <> :mode AND j.job_id <> :job_id ORDER BY j.finished_at DESC LIMIT 1

-- name: rotating_jobs — jobs that name the hosts they test, with what their reports say
SELECT j.job_id, j.name, j.spec, j.status, j.in_manifest, r.figures, a.data_digest, a.code_digest FROM jobs AS j
LEFT JOIN attempts AS a ON a.job_id = j.job_id AND a.attempt = j.attempt
LEFT JOIN results AS r ON r.job_id = j.job_id AND r.attempt = j.attempt AND j.status = 'completed'
WHERE j.spec LIKE '%"test_hosts"%' ORDER BY j.seq LIMIT :most

-- name: jobs_like — jobs of a model and mode that test no named hosts, those of the plan first
SELECT job_id, name, spec, status, in_manifest FROM jobs
WHERE model = :model AND mode = :mode AND spec NOT LIKE '%"test_hosts"%' ORDER BY in_manifest DESC, seq LIMIT :most

-- name: results_missing — completed jobs that have none, the newest first
SELECT j.name, j.job_id, j.in_manifest, count(*) OVER () AS n FROM jobs AS j
WHERE j.status = 'completed' AND NOT EXISTS (
  SELECT 1 FROM results AS r WHERE r.job_id = j.job_id AND r.attempt = j.attempt)
ORDER BY j.finished_at DESC LIMIT :most
