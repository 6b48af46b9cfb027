-- Stores the limits and tells all.
--
-- KEYS  limits
-- ARGV  version, source, time to live in seconds, the message

redis.call('HSET', KEYS[1], 'version', ARGV[1], 'source', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', 'sluice:policies', ARGV[4])
return 1
