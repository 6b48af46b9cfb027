-- Counts what is before a new job of each user ($1) in a queue ($2): the user's
-- available, running and parked jobs there, and whether any is gated. The last row has
-- those ids of $3 that can be seen.
SELECT k.ord::int4, flowing.n + parked.n, EXISTS (
		SELECT FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' = 'gated'
	), '{}'::int8[]
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (usr, queue, ord)
CROSS JOIN LATERAL (
	SELECT count(*) AS n
	FROM @table@ AS j
	WHERE j.metadata->>'sluice:user' = k.usr
		AND j.queue = k.queue
		AND j.state IN ('available', 'running')
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
UNION ALL
SELECT 0, 0, false, ARRAY (SELECT id FROM @table@ WHERE id = ANY($3::int8[]))
