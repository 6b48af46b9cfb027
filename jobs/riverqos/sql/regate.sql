-- Puts the last $3 available jobs of a user ($1) in a queue ($2) behind the gate, for
-- at most $5 seconds, except those ($4) that a slot is reserved for. It returns how many, and how many of them
-- were never held back or refused a slot before.
WITH regated AS (
	UPDATE @table@ AS j
	SET state = 'scheduled',
		scheduled_at = now() + make_interval(secs => $5::float8),
		metadata = jsonb_build_object('sluice:since', extract(epoch FROM j.scheduled_at)) || j.metadata || '{"sluice:wait": "gated", "sluice:delayed": true}'
	FROM (
		SELECT id, metadata->>'sluice:delayed' IS NOT DISTINCT FROM 'true' AS delayed
		FROM @table@
		WHERE state IN ('available', 'running')
			AND state = 'available'
			AND metadata->>'sluice:user' = $1::text
			AND queue = $2::text
			AND scheduled_at <= now()
			AND id <> ALL($4::int8[])
		ORDER BY priority DESC, scheduled_at DESC, id DESC
		LIMIT $3::int4
		FOR UPDATE SKIP LOCKED
	) AS picked
	WHERE j.id = picked.id
	RETURNING picked.delayed
)
SELECT count(*)::int4, (count(*) FILTER (WHERE NOT delayed))::int4 FROM regated
