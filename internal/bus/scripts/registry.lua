-- Registers an instance, or lets it leave, or only lists them, and tells all when
-- that, or another instance's silence, changed the membership.
--
-- KEYS  instances, shards
-- ARGV  'register', 'leave' or 'list', instance, number of shards, lapse and time to
--       live in milliseconds
-- Returns the number of shards in force (in which case, if it is another, nothing
-- was done), Redis' time (seconds, microseconds), then the instances.

local shards = redis.call('GET', KEYS[2]) or ARGV[3]
local time = redis.call('TIME')
local reply = {shards, time[1], time[2]}
if shards ~= ARGV[3] then return reply end

local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A score of the future is that of another master's clock, or of one set back.
local changed = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[4])
              + redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[4], '+inf')
if ARGV[1] == 'register' then
  changed = changed + redis.call('ZADD', KEYS[1], now, ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  redis.call('SET', KEYS[2], shards, 'PX', ARGV[5])
elseif ARGV[1] == 'leave' then
  changed = changed + redis.call('ZREM', KEYS[1], ARGV[2])
end

local said = {'1', time[1], time[2]}
for i, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  reply[3 + i] = name
  said[3 + i] = #name .. ':' .. name
end
if changed > 0 then
  redis.call('PUBLISH', 'sluice:instances', table.concat(said, ' '))
end
return reply
