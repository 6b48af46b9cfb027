-- Whether another attempt at the job ($1) than the one that began at $2 is under way.
SELECT EXISTS (
	SELECT
	FROM @table@
	WHERE id = $1::int8 AND state = 'running' AND attempted_at <> $2::timestamptz
)
