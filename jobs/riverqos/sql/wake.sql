-- Makes jobs available for which slots are reserved, if Sluice is why they wait: never
-- one that has finished, or that is scheduled by its own will. A job that River made
-- available for a moment in the near future is called now. One that a transaction has
-- locked still waits afterwards: nobody knows how long that stays open. One that has been running for longer than a
-- lease ($2, in seconds) was refused by a worker that died before River wrote it. That attempt does not count.
WITH picked AS (
	SELECT id
	FROM @table@
	WHERE id = ANY($1::int8[])
		AND (
			metadata->>'sluice:wait' IN ('gated', 'parked') AND (state = 'scheduled' OR state = 'available' AND scheduled_at > now())
			OR state = 'running' AND attempted_at < now() - make_interval(secs => $2::float8)
		)
	ORDER BY id
	FOR UPDATE SKIP LOCKED
), woken AS (
	UPDATE @table@ AS j
	SET state = 'available', scheduled_at = now(), metadata = j.metadata - 'sluice:wait',
		attempt = j.attempt - CASE WHEN j.state = 'running' THEN 1 ELSE 0 END
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
