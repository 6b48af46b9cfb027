-- Lets gated jobs through: of each user ($1) in a queue ($2), as many as bring the
-- user's available, running and parked jobs there up to a size ($3); 5000 at a time.
--
-- The job with the id $4 has ended, although its row still says that it runs: River
-- writes later. It is marked as passed by the attempt's time, so that nobody else
-- counts it until it is fetched anew, unless somebody's transaction has locked it.
WITH ended AS (
	UPDATE @table@
	SET metadata = metadata || jsonb_build_object('sluice:passed', extract(epoch FROM attempted_at)::text)
	WHERE id = (SELECT id FROM @table@ WHERE id = $4::int8 AND state = 'running' FOR UPDATE SKIP LOCKED)
), picked AS (
	SELECT next.id
	FROM unnest($1::text[], $2::text[], $3::int4[]) AS k (usr, queue, size)
	CROSS JOIN LATERAL (
		SELECT count(*) AS n
		FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state IN ('available', 'running')
			AND j.id <> $4::int8
			AND (j.state = 'available' OR j.metadata->>'sluice:passed' IS DISTINCT FROM extract(epoch FROM j.attempted_at)::text)
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
SELECT count(*)::int4 FROM promoted WHERE (SELECT count(*) FROM told) >= 0
