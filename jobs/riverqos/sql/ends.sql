-- What has to be done about attempts that have ended here: the numbers, from 1, of those flows
-- ($1, $2) in which jobs are held back, and which of the attempts at the jobs $3, begun at $4, their rows still say
-- to be running. It is asked ten times a second, and nearly always there is nothing to do: it only probes indexes.
SELECT ARRAY (
	SELECT ord::int4
	FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (usr, queue, ord)
	WHERE EXISTS (
		SELECT FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = k.usr
			AND j.queue = k.queue
			AND j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' = 'gated'
	)
), ARRAY (
	SELECT it.id
	FROM @table@ AS it
	JOIN unnest($3::int8[], $4::timestamptz[]) AS o (id, began) ON o.id = it.id AND o.began = it.attempted_at
	WHERE it.id = ANY($3::int8[]) AND it.state = 'running'
)
