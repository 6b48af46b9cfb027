-- The users and queues with more than one job that is available or runs, and how
-- many. Attempts at the jobs $1, begun at $2, have ended.
SELECT metadata->>'sluice:user', queue, count(*)
FROM @table@
WHERE state IN ('available', 'running')
	AND metadata->>'sluice:user' IS NOT NULL
	AND (state = 'available' OR metadata->>'sluice:passed' IS DISTINCT FROM extract(epoch FROM attempted_at)::text
		AND (id, attempted_at) NOT IN (SELECT * FROM unnest($1::int8[], $2::timestamptz[])))
GROUP BY 1, 2
HAVING count(*) > 1 AND bool_or(state = 'available')
LIMIT 10000
