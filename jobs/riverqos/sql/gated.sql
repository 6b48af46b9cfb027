-- Up to $3 users and queues with gated or parked jobs, after one. It leaps through the index
-- from each to the next, so that a long backlog of one user costs nothing.
WITH RECURSIVE k (usr, queue) AS (
	(
		SELECT metadata->>'sluice:user', queue
		FROM @table@
		WHERE state = 'scheduled'
			AND metadata->>'sluice:wait' IN ('gated', 'parked')
			AND (metadata->>'sluice:user', queue) > ($1::text, $2::text)
		ORDER BY metadata->>'sluice:user', queue
		LIMIT 1
	)
	UNION ALL
	SELECT next.usr, next.queue
	FROM k
	CROSS JOIN LATERAL (
		SELECT j.metadata->>'sluice:user' AS usr, j.queue
		FROM @table@ AS j
		WHERE j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' IN ('gated', 'parked')
			AND (j.metadata->>'sluice:user', j.queue) > (k.usr, k.queue)
		ORDER BY j.metadata->>'sluice:user', j.queue
		LIMIT 1
	) AS next
)
SELECT usr, queue FROM k LIMIT $3::int4
