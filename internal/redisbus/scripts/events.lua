-- Puts the first part of what one instance saw start and end in a second into the bucket of it, and has the bucket
-- expire. A report that is repeated, because the first call timed out and may have run, has the same fields.
--
-- KEYS  the bucket
-- ARGV  its time to live in seconds; a field, and its value

redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
