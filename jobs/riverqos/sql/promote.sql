-- Lets gated jobs through: of each user ($1) in a queue ($2) at most $3, and only as many as bring the
-- user's available and parked jobs there up to $4; 5000 at a time. It returns how many.
WITH waiting AS MATERIALIZED (
	SELECT usr, queue, most, want
	FROM unnest($1::text[], $2::text[], $3::int4[], $4::int4[]) AS k (usr, queue, most, want)
	WHERE EXISTS (
		SELECT FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' = 'gated'
	)
), picked AS (
	SELECT next.id
	FROM waiting AS k
	CROSS JOIN LATERAL (
		SELECT count(*) AS n
		FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state IN ('available', 'running')
			AND j.state = 'available'
	) AS available
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
		LIMIT greatest(0, least(k.most, k.want - available.n - parked.n))
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
