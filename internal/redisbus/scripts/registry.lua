-- Registers an instance, or lets it leave, or only lists them, and tells all when
-- that, or another instance's silence, changed the membership. Time in which no instance
-- was heard is no silence.
--
-- Each membership has an epoch of its own: a number that grows, and a word that no other
-- call has, so that a Redis which has forgotten some of them makes none again.
--
-- KEYS  instances (a zset: instance -> when it was heard, in milliseconds), shards, epoch,
--       versions (a hash: instance -> that of its limits), problems (a hash: instance ->
--       why it does not fully work; a well one is not there)
-- ARGV  'register', 'leave' or 'list', instance, the version of its limits, number of
--       shards, lapse and time to live in milliseconds, its problem ('' if it is well),
--       time to live of the number of shards, the epoch that the caller knows, the word
-- Returns the number of shards in force (in which case, if it is another, nothing was
-- done), Redis' time (seconds, microseconds), the epoch, and all names if the caller knows
-- another one.

local shards = redis.call('GET', KEYS[2]) or ARGV[4]
local time = redis.call('TIME')
local reply = {shards, time[1], time[2]}
if shards ~= ARGV[4] then return reply end

local epoch, lapse = redis.call('GET', KEYS[3]) or '', tonumber(ARGV[5])
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local joined, left = {}, {}
local function drop(from, to)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], from, to)) do
    left[#left + 1] = name
    redis.call('ZREM', KEYS[1], name)
  end
end

-- A score of the future is that of another master's clock, or of one set back.
drop(now + lapse, '+inf')
-- While Redis or all machines stand still, nobody is heard, and that is no instance's own
-- silence: the first that is heard again must not take the others for gone. Two heartbeats of
-- it count, or those who have died would stay where the only one left is heard rarely. An
-- instance that is new does not know whether the others stood still or have died. A reader does
-- not know it either, and takes them for gone after twice the time.
local quiet = now - (redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or now)
local lapses = 1
if quiet > lapse / 3 then
  if ARGV[1] == 'register' and redis.call('ZSCORE', KEYS[1], ARGV[2]) then
    for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
      redis.call('ZINCRBY', KEYS[1], quiet - lapse / 3, name)
    end
  elseif ARGV[1] ~= 'register' then
    lapses = 2
  end
end
drop('-inf', now - lapses * lapse)
if ARGV[1] == 'register' then
  if redis.call('ZADD', KEYS[1], now, ARGV[2]) == 1 then joined[1] = ARGV[2] end
  redis.call('SET', KEYS[2], shards, 'PX', ARGV[8])
  redis.call('HSET', KEYS[4], ARGV[2], ARGV[3])
  if ARGV[7] == '' then
    redis.call('HDEL', KEYS[5], ARGV[2])
  else
    redis.call('HSET', KEYS[5], ARGV[2], ARGV[7])
  end
elseif ARGV[1] == 'leave' and redis.call('ZREM', KEYS[1], ARGV[2]) == 1 then
  left[#left + 1] = ARGV[2]
end
for _, name in ipairs(left) do
  if name ~= joined[1] then
    redis.call('HDEL', KEYS[4], name)
    redis.call('HDEL', KEYS[5], name)
  end
end

local function text(s) return #s .. ':' .. s end
if #joined + #left > 0 or epoch == '' and redis.call('ZCARD', KEYS[1]) > 0 then
  local from = epoch
  -- Nobody can be told what has changed since nothing.
  if from == '' then left, joined = {}, redis.call('ZRANGE', KEYS[1], 0, -1) end
  epoch = string.format('%d-%s', (string.match(from, '^%d+') or 0) + 1, ARGV[10])
  local said = {'2', time[1], time[2], text(from), text(epoch), #left}
  for _, name in ipairs(left) do said[#said + 1] = text(name) end
  for _, name in ipairs(joined) do said[#said + 1] = text(name) end
  redis.call('SET', KEYS[3], epoch)
  redis.call('PUBLISH', 'sluice:instances', table.concat(said, ' '))
end
for i = 1, #KEYS do
  if i ~= 2 then redis.call('PEXPIRE', KEYS[i], ARGV[6]) end
end

reply[4] = epoch
if epoch == '' or epoch ~= ARGV[9] then
  for i, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do reply[4 + i] = name end
end
return reply
