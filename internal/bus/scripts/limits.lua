-- Stores the head of limits, whose chunks are there, and tells all.
--
-- KEYS  limits
-- ARGV  version, head, time to live in seconds, the message

redis.call('HSET', KEYS[1], 'version', ARGV[1], 'head', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', 'sluice:policies', ARGV[4])
return 1
