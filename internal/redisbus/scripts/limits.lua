-- Stores limits, whose file is there, and tells all.
--
-- KEYS     limits
-- ARGV     version, head, overrides, time to live in seconds, the message
-- Returns  the head before, or "".

local before = redis.call('HGET', KEYS[1], 'head')
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'head', ARGV[2], 'overrides', ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', 'sluice:policies', ARGV[5])
return before or ''
