-- The parked jobs of users ($1) that were refused a slot more than $2 seconds ago.
SELECT id, metadata->>'sluice:user'
FROM @table@
WHERE state = 'scheduled'
	AND metadata->>'sluice:wait' IN ('gated', 'parked')
	AND metadata->>'sluice:wait' = 'parked'
	AND metadata->>'sluice:user' = ANY($1::text[])
	AND attempted_at < now() - make_interval(secs => $2::float8)
LIMIT 10000
