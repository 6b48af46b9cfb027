-- The users and queues with more than one available job, and how many.
SELECT metadata->>'sluice:user', queue, count(*)
FROM @table@
WHERE state IN ('available', 'running')
	AND state = 'available'
	AND metadata->>'sluice:user' IS NOT NULL
GROUP BY 1, 2
HAVING count(*) > 1
LIMIT 10000
