-- Makes jobs available for which slots are reserved, if Sluice is why they wait: never
-- one that has finished, or that is scheduled by its own will. A job that River made
-- available for a moment in the near future is called now. One that a transaction has
-- locked still waits afterwards: nobody knows how long that stays open.
WITH picked AS (
	SELECT id
	FROM @table@
	WHERE id = ANY($1::int8[])
		AND metadata->>'sluice:wait' IN ('gated', 'parked')
		AND (state = 'scheduled' OR state = 'available' AND scheduled_at > now())
	ORDER BY id
	FOR UPDATE SKIP LOCKED
), woken AS (
	UPDATE @table@ AS j
	SET state = 'available', scheduled_at = now(), metadata = j.metadata - 'sluice:wait'
	FROM picked
	WHERE j.id = picked.id
	RETURNING j.id, j.queue
), told AS (
	SELECT pg_notify(@channel@, json_build_object('queue', queue)::text)
	FROM (SELECT DISTINCT queue FROM woken) AS queues
)
SELECT id, state::text,
	coalesce(metadata->>'sluice:wait' IN ('gated', 'parked') AND (state = 'scheduled' OR state = 'available' AND scheduled_at > now()), false),
	id IN (SELECT id FROM woken)
FROM @table@
WHERE id = ANY($1::int8[]) AND (SELECT count(*) FROM told) >= 0
