-- Each user's jobs that are available to workers or run.
CREATE INDEX IF NOT EXISTS river_job_sluice_flow ON @table@
	((metadata->>'sluice:user'), queue)
	WHERE state IN ('available', 'running');

-- Each user's jobs that Sluice holds back, in the order in which they are let through.
CREATE INDEX IF NOT EXISTS river_job_sluice_held ON @table@
	((metadata->>'sluice:user'), queue, (metadata->>'sluice:wait'), priority, id)
	WHERE state = 'scheduled' AND metadata->>'sluice:wait' IN ('gated', 'parked');
