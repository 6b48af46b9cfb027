-- Tells workers that queues ($1) have jobs.
SELECT pg_notify(@channel@, json_build_object('queue', queue)::text) FROM unnest($1::text[]) AS queue
