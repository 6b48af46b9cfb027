-- The schema of River's table.
SELECT nspname FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace WHERE pg_class.oid = '@table@'::regclass
