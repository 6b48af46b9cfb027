-- Puts what one instance saw start and end in a second into the bucket of it. A report that is
-- repeated, because the first call timed out and may have run, has the same fields.
-- A report is some fields: a field for each user would cost Redis more than all else together.
--
-- KEYS  the bucket
-- ARGV  its time to live in seconds; then fields, each with its value

redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
