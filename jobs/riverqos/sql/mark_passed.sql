-- Marks jobs whose worker is dead as passed. River's rescuer gets them in its own time.
UPDATE @table@ AS j
SET metadata = j.metadata || jsonb_build_object('sluice:passed', extract(epoch FROM j.attempted_at)::text)
FROM (
	SELECT id
	FROM @table@
	WHERE id = ANY($1::int8[]) AND state = 'running' AND attempted_at < now() - make_interval(secs => $2::float8)
	FOR UPDATE SKIP LOCKED
) AS picked
WHERE j.id = picked.id
