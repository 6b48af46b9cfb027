-- How many jobs there are that have not finished, by queue and state. Those that Sluice
-- holds back are called by its own words.
SELECT queue, CASE WHEN state = 'scheduled' AND metadata->>'sluice:wait' IN ('gated', 'parked') THEN metadata->>'sluice:wait' ELSE state::text END, count(*)
FROM @table@
WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled')
GROUP BY 1, 2
