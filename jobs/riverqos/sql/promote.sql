-- Lets gated jobs through: of each user ($1) in a queue ($2), as many as bring the
-- user's available, running and parked jobs there up to a size ($3); 5000 at a time.
--
-- Attempts at the jobs $4, begun at $5, have ended, although their rows may still say
-- that they run: River writes later. They are marked as passed by the attempt's time, so
-- that nobody else counts them until they are fetched anew, unless somebody's transaction
-- has locked them: the result has the ids of those.
WITH over AS (
	SELECT id, began FROM unnest($4::int8[], $5::timestamptz[]) AS o (id, began)
), ended AS (
	UPDATE @table@ AS j
	SET metadata = j.metadata || jsonb_build_object('sluice:passed', extract(epoch FROM j.attempted_at)::text)
	FROM (
		SELECT it.id
		FROM @table@ AS it
		JOIN over ON over.id = it.id AND over.began = it.attempted_at
		WHERE it.id = ANY($4::int8[]) AND it.state = 'running'
		FOR UPDATE OF it SKIP LOCKED
	) AS free
	WHERE j.id = free.id
	RETURNING j.id
), picked AS (
	SELECT next.id
	FROM unnest($1::text[], $2::text[], $3::int4[]) AS k (usr, queue, size)
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
SELECT (SELECT count(*)::int4 FROM promoted), ARRAY (
	SELECT it.id
	FROM @table@ AS it
	JOIN over ON over.id = it.id AND over.began = it.attempted_at
	WHERE it.id = ANY($4::int8[])
		AND it.state = 'running'
		AND it.metadata->>'sluice:passed' IS DISTINCT FROM extract(epoch FROM it.attempted_at)::text
		AND it.id NOT IN (SELECT id FROM ended)
)
WHERE (SELECT count(*) FROM told) >= 0
