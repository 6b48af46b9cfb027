-- Up to $3 users and services with gated or parked jobs, after one. It leaps through the index
-- from each to the next, so that a long backlog of one user costs nothing.
WITH RECURSIVE k (usr, service) AS (
	(
		SELECT metadata->>'sluice:user', metadata->>'sluice:service'
		FROM @table@
		WHERE state = 'scheduled'
			AND metadata->>'sluice:wait' IN ('gated', 'parked')
			AND (metadata->>'sluice:user', metadata->>'sluice:service') > ($1::text, $2::text)
		ORDER BY metadata->>'sluice:user', metadata->>'sluice:service'
		LIMIT 1
	)
	UNION ALL
	SELECT next.usr, next.service
	FROM k
	CROSS JOIN LATERAL (
		SELECT j.metadata->>'sluice:user' AS usr, j.metadata->>'sluice:service' AS service
		FROM @table@ AS j
		WHERE j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' IN ('gated', 'parked')
			AND (j.metadata->>'sluice:user', j.metadata->>'sluice:service') > (k.usr, k.service)
		ORDER BY j.metadata->>'sluice:user', j.metadata->>'sluice:service'
		LIMIT 1
	) AS next
)
SELECT usr, service FROM k LIMIT $3::int4
