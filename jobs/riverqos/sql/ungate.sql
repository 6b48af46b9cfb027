-- Lets up to $1 jobs go that were held back.
WITH picked AS (
	SELECT id
	FROM @table@
	WHERE state = 'scheduled' AND metadata->>'sluice:wait' IN ('gated', 'parked')
	LIMIT $1::int4
	FOR UPDATE SKIP LOCKED
), freed AS (
	UPDATE @table@ AS j
	SET state = 'available', scheduled_at = now(), metadata = j.metadata - 'sluice:wait'
	FROM picked
	WHERE j.id = picked.id
	RETURNING j.queue
), told AS (
	SELECT pg_notify(@channel@, json_build_object('queue', queue)::text)
	FROM (SELECT DISTINCT queue FROM freed) AS queues
)
SELECT count(*)::int4 FROM freed WHERE (SELECT count(*) FROM told) >= 0
