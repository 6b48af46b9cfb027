-- Stores the head of limits, whose chunks are there, and tells all.
--
-- KEYS  limits
-- ARGV  version, head, time to live in seconds, the message, and if the limits are
--       small, their source

redis.call('HSET', KEYS[1], 'version', ARGV[1], 'head', ARGV[2])
if ARGV[5] then
  redis.call('HSET', KEYS[1], 'source', ARGV[5])
else -- that of other limits would be taken for that of these
  redis.call('HDEL', KEYS[1], 'source')
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', 'sluice:policies', ARGV[4])
return 1
