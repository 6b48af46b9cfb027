-- How many gated jobs of a user ($1) in a queue ($2) go before one ($3).
SELECT count(*)
FROM @table@ AS j
JOIN @table@ AS it ON it.id = $3::int8
WHERE j.metadata->>'sluice:user' = $1::text
	AND j.queue = $2::text
	AND j.state = 'scheduled'
	AND j.metadata->>'sluice:wait' = 'gated'
	AND (j.priority, j.id) < (it.priority, it.id)
