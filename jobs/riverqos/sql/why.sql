SELECT state::text, kind, queue, attempt, created_at, scheduled_at, args::text, metadata::text, now()
FROM @table@
WHERE id = $1::int8
