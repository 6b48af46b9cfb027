-- The jobs of users ($1) that say they run, since longer than a lease ($2, in seconds).
SELECT id, metadata->>'sluice:user'
FROM @table@
WHERE state IN ('available', 'running')
	AND state = 'running'
	AND metadata->>'sluice:user' = ANY($1::text[])
	AND attempted_at < now() - make_interval(secs => $2::float8)
	AND metadata->>'sluice:passed' IS DISTINCT FROM extract(epoch FROM attempted_at)::text
LIMIT 10000
