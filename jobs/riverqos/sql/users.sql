-- Up to $1 users and queues with jobs that are held back, and up to $1 with jobs that are available or run:
-- how many wait, whether more do than were counted, and which has waited for longest. It leaps through the
-- indexes from each to the next, and counts $2 of each kind and priority at most, so that a long backlog of one
-- user costs no more than that. Of those held back it counts the first by id, among which the oldest is.
WITH RECURSIVE held (usr, queue) AS (
	(
		SELECT metadata->>'sluice:user', queue
		FROM @table@
		WHERE state = 'scheduled' AND metadata->>'sluice:wait' IN ('gated', 'parked')
			AND (metadata->>'sluice:user', queue) > ('', '')
		ORDER BY metadata->>'sluice:user', queue
		LIMIT 1
	)
	UNION ALL
	SELECT next.usr, next.queue
	FROM held
	CROSS JOIN LATERAL (
		SELECT j.metadata->>'sluice:user' AS usr, j.queue
		FROM @table@ AS j
		WHERE j.state = 'scheduled' AND j.metadata->>'sluice:wait' IN ('gated', 'parked')
			AND (j.metadata->>'sluice:user', j.queue) > (held.usr, held.queue)
		ORDER BY j.metadata->>'sluice:user', j.queue
		LIMIT 1
	) AS next
), flowing (usr, queue) AS (
	(
		SELECT metadata->>'sluice:user', queue
		FROM @table@
		WHERE state IN ('available', 'running')
			AND (metadata->>'sluice:user', queue) > ('', '')
		ORDER BY metadata->>'sluice:user', queue
		LIMIT 1
	)
	UNION ALL
	SELECT next.usr, next.queue
	FROM flowing
	CROSS JOIN LATERAL (
		SELECT j.metadata->>'sluice:user' AS usr, j.queue
		FROM @table@ AS j
		WHERE j.state IN ('available', 'running')
			AND (j.metadata->>'sluice:user', j.queue) > (flowing.usr, flowing.queue)
		ORDER BY j.metadata->>'sluice:user', j.queue
		LIMIT 1
	) AS next
), flows (usr, queue) AS (
	(SELECT usr, queue FROM held LIMIT $1::int4)
	UNION
	(SELECT usr, queue FROM flowing LIMIT $1::int4)
)
SELECT flows.usr, flows.queue, sum(counted.jobs)::int4, bool_or(counted.jobs >= $2::int4),
	(array_agg(counted.oldest ORDER BY counted.since, counted.oldest) FILTER (WHERE counted.oldest IS NOT NULL))[1], min(counted.since)
FROM flows
CROSS JOIN LATERAL (
	SELECT count(*) AS jobs, (array_agg(id ORDER BY since, id))[1] AS oldest, min(since) AS since
	FROM (
		SELECT j.id, to_timestamp(coalesce(nullif(least(greatest(CASE WHEN jsonb_typeof(j.metadata->'sluice:since') = 'number' THEN (j.metadata->'sluice:since')::numeric END, 0), 1e11), 0)::float8, extract(epoch FROM j.scheduled_at))) AS since
		FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = flows.usr AND j.queue = flows.queue AND j.state = 'available'
		LIMIT $2::int4
	) AS available
	UNION ALL
	SELECT kind.*
	FROM unnest('{gated,parked}'::text[]) AS wait
	CROSS JOIN generate_series(1, 4) AS priority
	CROSS JOIN LATERAL (
		SELECT count(*) AS jobs, (array_agg(id ORDER BY since, id))[1] AS oldest, min(since) AS since
		FROM (
			SELECT j.id, to_timestamp(coalesce(nullif(least(greatest(CASE WHEN jsonb_typeof(j.metadata->'sluice:since') = 'number' THEN (j.metadata->'sluice:since')::numeric END, 0), 1e11), 0)::float8, extract(epoch FROM j.scheduled_at))) AS since
			FROM @table@ AS j
			WHERE j.metadata->>'sluice:user' = flows.usr AND j.queue = flows.queue
				AND j.state = 'scheduled' AND j.metadata->>'sluice:wait' IN ('gated', 'parked')
				AND j.metadata->>'sluice:wait' = wait AND j.priority = priority.priority
			ORDER BY j.id
			LIMIT $2::int4
		) AS held_back
	) AS kind
) AS counted
GROUP BY flows.usr, flows.queue
