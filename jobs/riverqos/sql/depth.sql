-- How many jobs there are that have not finished, by queue and state; 0 too: of each queue
-- that has jobs, and of each that a worker works or has worked until lately (River forgets
-- the others after a day). Those that Sluice holds back are called by its own words.
WITH counted AS (
	SELECT queue, CASE WHEN state = 'scheduled' AND metadata->>'sluice:wait' IN ('gated', 'parked') THEN metadata->>'sluice:wait' ELSE state::text END AS state, count(*) AS jobs
	FROM @table@
	WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled')
	GROUP BY 1, 2
)
SELECT queues.name, states.name, coalesce(counted.jobs, 0)
FROM (SELECT name FROM @queues@ UNION SELECT queue FROM counted) AS queues (name)
CROSS JOIN unnest('{available,gated,parked,pending,retryable,running,scheduled}'::text[]) AS states (name)
LEFT JOIN counted ON counted.queue = queues.name AND counted.state = states.name
