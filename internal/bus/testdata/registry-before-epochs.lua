-- Registers an instance, or lets it leave, or only lists them, and tells all when
-- that, or another instance's silence, changed the membership. Time in which no instance
-- was heard is no silence.
--
-- KEYS  instances, shards, versions (a hash: instance -> that of its limits), problems
--       (a hash: instance -> why it does not fully work; a well one is not there)
-- ARGV  'register', 'leave' or 'list', instance, the version of its limits, number of
--       shards, lapse and time to live in milliseconds, its problem ('' if it is well),
--       time to live of the number of shards
-- Returns the number of shards in force (in which case, if it is another, nothing
-- was done), Redis' time (seconds, microseconds), then for each instance its name,
-- the version of its limits ('' if it has none) and its problem ('' if it is well).
-- Subscribers are told all but the problems: older ones could not read those.

local shards = redis.call('GET', KEYS[2]) or ARGV[4]
local time = redis.call('TIME')
local reply = {shards, time[1], time[2]}
if shards ~= ARGV[4] then return reply end

local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- A score of the future is that of another master's clock, or of one set back.
local changed = redis.call('ZREMRANGEBYSCORE', KEYS[1], now + ARGV[5], '+inf')
-- While Redis or all machines stand still, nobody is heard, and that is no instance's own
-- silence: the first that is heard again must not take the others for gone. Two heartbeats of
-- it count, or those who have died would stay where the only one left is heard rarely. An
-- instance that is new does not know whether the others stood still or have died. A reader does
-- not know it either, and takes them for gone after twice the time.
local quiet = now - (redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or now)
local silent = now - ARGV[5]
if quiet > ARGV[5] / 3 then
  if ARGV[1] == 'register' and redis.call('ZSCORE', KEYS[1], ARGV[2]) then
    for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
      redis.call('ZINCRBY', KEYS[1], quiet - ARGV[5] / 3, name)
    end
  elseif ARGV[1] ~= 'register' then
    silent = silent - ARGV[5]
  end
end
changed = changed + redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', silent)
if ARGV[1] == 'register' then
  changed = changed + redis.call('ZADD', KEYS[1], now, ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[6])
  redis.call('SET', KEYS[2], shards, 'PX', ARGV[8])
  redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
  redis.call('PEXPIRE', KEYS[3], ARGV[6])
  if ARGV[7] == '' then
    redis.call('HDEL', KEYS[4], ARGV[2])
  else
    redis.call('HSET', KEYS[4], ARGV[2], ARGV[7])
    redis.call('PEXPIRE', KEYS[4], ARGV[6])
  end
elseif ARGV[1] == 'leave' then
  changed = changed + redis.call('ZREM', KEYS[1], ARGV[2])
end

local function all(key)
  local map, stored = {}, redis.call('HGETALL', key)
  for i = 1, #stored, 2 do map[stored[i]] = stored[i + 1] end
  return map
end
local versions, problems = all(KEYS[3]), all(KEYS[4])
local said = {'1', time[1], time[2]}
for i, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local version, problem = versions[name] or '', problems[name] or ''
  versions[name], problems[name] = nil, nil
  reply[1 + 3 * i], reply[2 + 3 * i], reply[3 + 3 * i] = name, version, problem
  said[2 + 2 * i], said[3 + 2 * i] = #name .. ':' .. name, #version .. ':' .. version
end
for name in pairs(versions) do redis.call('HDEL', KEYS[3], name) end -- who is gone
for name in pairs(problems) do redis.call('HDEL', KEYS[4], name) end
if changed > 0 then
  redis.call('PUBLISH', 'sluice:instances', table.concat(said, ' '))
end
return reply
