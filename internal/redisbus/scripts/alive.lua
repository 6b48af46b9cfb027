-- Tells a shard that an instance is alive.
--
-- KEYS  the shard's instances: a zset, instance -> Redis' time when it was heard last
-- ARGV  the instance, lapse and time to live in milliseconds
-- Returns 1.
--
-- Who is not heard any more stays for the time to live: scripts/slots.lua takes those for
-- gone, but not those of whom the shard has never heard.

local time = redis.call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local heard = redis.call('ZSCORE', KEYS[1], ARGV[1])
-- Only here, and not with each heartbeat: nobody is added without it, so the list cannot grow.
if not heard then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3])
  redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[2], '+inf') -- of another clock
elseif now - heard > ARGV[2] / 3 then
  -- As in scripts/registry.lua: time in which nobody was heard is no instance's own silence.
  -- Here twice that much passes between two calls of one that is alone.
  local quiet = now - redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
  if quiet > ARGV[2] / 3 then
    for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
      redis.call('ZINCRBY', KEYS[1], string.format('%.0f', quiet - ARGV[2] / 3), name)
    end
  end
end
redis.call('ZADD', KEYS[1], string.format('%d', now), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
