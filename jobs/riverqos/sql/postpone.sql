-- Keeps up to $2 gated jobs from becoming available by themselves, for another $1
-- seconds.
UPDATE @table@ AS j
SET scheduled_at = now() + make_interval(secs => $1::float8)
FROM (
	SELECT id
	FROM @table@
	WHERE state = 'scheduled'
		AND metadata->>'sluice:wait' = 'gated'
		AND scheduled_at < now() + make_interval(secs => $1::float8 / 2)
	LIMIT $2::int4
	FOR UPDATE SKIP LOCKED
) AS picked
WHERE j.id = picked.id
