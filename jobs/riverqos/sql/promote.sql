-- Lets gated jobs through: of each user ($1) in a queue ($2), as many as bring the
-- user's available, running and parked jobs there up to a size ($3); 5000 at a time.
--
-- Attempts at the jobs $4, begun at $5, have ended, although their rows may still say
-- that they run: River writes later. Where jobs wait for them they are marked as passed by
-- the attempt's time, so that nobody else counts them until they are fetched anew, unless
-- somebody's transaction has locked them: the result has the ids of those that are not
-- marked. Where none waits a mark would be a second write of each job for nobody, but for
-- those ($6) whose end is long overdue. The result has also the numbers of the flows, from
-- 1, in which jobs waited.
WITH waiting AS MATERIALIZED (
	SELECT usr, queue, size, ord
	FROM unnest($1::text[], $2::text[], $3::int4[]) WITH ORDINALITY AS k (usr, queue, size, ord)
	WHERE EXISTS (
		SELECT FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' = 'gated'
	)
), over AS (
	SELECT id, began FROM unnest($4::int8[], $5::timestamptz[]) AS o (id, began)
), ended AS (
	UPDATE @table@ AS j
	SET metadata = j.metadata || jsonb_build_object('sluice:passed', extract(epoch FROM j.attempted_at)::text)
	FROM (
		SELECT it.id
		FROM @table@ AS it
		JOIN over ON over.id = it.id AND over.began = it.attempted_at
		WHERE it.id = ANY($4::int8[]) AND it.state = 'running'
			AND (it.id = ANY($6::int8[]) OR (it.metadata->>'sluice:user', it.queue) IN (SELECT usr, queue FROM waiting))
		FOR UPDATE OF it SKIP LOCKED
	) AS free
	WHERE j.id = free.id
	RETURNING j.id
), picked AS (
	SELECT next.id
	FROM waiting AS k
	CROSS JOIN LATERAL (
		SELECT count(*) AS n
		FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state IN ('available', 'running')
			AND (j.state = 'available' OR j.metadata->>'sluice:passed' IS DISTINCT FROM extract(epoch FROM j.attempted_at)::text
				AND NOT EXISTS (SELECT FROM over WHERE over.id = j.id AND over.began = j.attempted_at))
	) AS flowing
	CROSS JOIN LATERAL (
		SELECT count(*) AS n
		FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' = 'parked'
	) AS parked
	CROSS JOIN LATERAL (
		SELECT j.id
		FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' = 'gated'
		ORDER BY j.priority, j.id
		LIMIT greatest(0, k.size - flowing.n - parked.n)
		FOR UPDATE SKIP LOCKED
	) AS next
	LIMIT 5000
), promoted AS (
	UPDATE @table@ AS j
	SET state = 'available', scheduled_at = now(), metadata = j.metadata - 'sluice:wait'
	FROM picked
	WHERE j.id = picked.id
	RETURNING j.queue
), told AS (
	SELECT pg_notify(@channel@, json_build_object('queue', queue)::text)
	FROM (SELECT DISTINCT queue FROM promoted) AS queues
)
SELECT (SELECT count(*)::int4 FROM promoted), ARRAY (SELECT ord::int4 FROM waiting), ARRAY (
	SELECT it.id
	FROM @table@ AS it
	JOIN over ON over.id = it.id AND over.began = it.attempted_at
	WHERE it.id = ANY($4::int8[])
		AND it.state = 'running'
		AND it.metadata->>'sluice:passed' IS DISTINCT FROM extract(epoch FROM it.attempted_at)::text
		AND it.id NOT IN (SELECT id FROM ended)
)
WHERE (SELECT count(*) FROM told) >= 0
