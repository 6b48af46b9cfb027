-- What tells this table of jobs from any other: of whichever server, and the same for all who ask.
SELECT concat_ws('.', system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()), '@table@'::regclass::oid)
FROM pg_control_system()
