-- The gate of inserts: a job that asks for it (sluice:gate: how many jobs of its user may wait for workers
-- in its queue, and until when the job is held back otherwise) is available if there is room and no gated job goes
-- before it. It counts with the indexes also before the table has been analyzed.
CREATE OR REPLACE FUNCTION @schema@.sluice_gate() RETURNS trigger LANGUAGE plpgsql SET enable_seqscan = off AS $gate$
DECLARE
	usr text := NEW.metadata->>'sluice:user';
	size int := NEW.metadata->'sluice:gate'->>0;
BEGIN
	IF EXISTS (
		SELECT FROM @table@ AS j
		WHERE j.metadata->>'sluice:user' = usr
			AND j.queue = NEW.queue
			AND j.state = 'scheduled'
			AND j.metadata->>'sluice:wait' = 'gated'
			AND j.priority <= NEW.priority
	) OR (
		SELECT count(*)
		FROM (
			SELECT FROM @table@ AS j
			WHERE j.metadata->>'sluice:user' = usr
				AND j.queue = NEW.queue
				AND j.state IN ('available', 'running')
				AND j.state = 'available'
			LIMIT size
		) AS available
	) + (
		SELECT count(*)
		FROM (
			SELECT FROM @table@ AS j
			WHERE j.metadata->>'sluice:user' = usr
				AND j.queue = NEW.queue
				AND j.state = 'scheduled'
				AND j.metadata->>'sluice:wait' = 'parked'
			LIMIT size
		) AS parked
	) >= size THEN
		NEW.state := 'scheduled';
		NEW.scheduled_at := to_timestamp((NEW.metadata->'sluice:gate'->>1)::float8);
		NEW.metadata := NEW.metadata || '{"sluice:wait": "gated", "sluice:delayed": true}';
	END IF;
	NEW.metadata := NEW.metadata - 'sluice:gate';
	RETURN NEW;
END
$gate$;

DO $do$
BEGIN
	-- Not replaced, which would lock the table against writing each time.
	IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '@table@'::regclass AND tgname = 'sluice_gate') THEN
		CREATE TRIGGER sluice_gate BEFORE INSERT ON @table@ FOR EACH ROW
			WHEN (NEW.metadata ? 'sluice:gate') EXECUTE FUNCTION @schema@.sluice_gate();
	END IF;
END
$do$;
