-- Registers an instance, or lets it leave, or only lists them, and tells all when
-- that, or another instance's silence, changed the membership. Time in which no instance
-- was heard is no silence.
--
-- Each membership has an epoch of its own: a number that grows, and a word that no other
-- call has, so that a Redis which has forgotten some of them makes none again. A large one's ends with its pace, see rhythm.go: how many times slower than
-- in a small cluster instances beat, and are taken for gone. Each score is when the instance was
-- heard, in milliseconds, and in sixteenths of one the pace at which it beats.
--
-- KEYS  instances, shards, epoch, changes (a zset: message -> number of the epoch that it
--       leads to), versions (a hash: instance -> that of its limits), problems (a hash:
--       instance -> why it does not fully work; a well one is not there)
-- ARGV  'register', 'leave' or 'list', instance, the version of its limits, number of
--       shards, lapse at pace 1 and time to live in milliseconds, its problem ('' if it is
--       well), time to live of the number of shards, the epoch that the caller knows, the
--       word, how many changes are kept, how many instances beat at pace 1, the slowest pace
-- Returns the number of shards in force (in which case, if it is another, nothing was
-- done), Redis' time (seconds, microseconds), the epoch, and if the caller knows another
-- one 'changes' and the messages since that one, or 'whole' and all names.

local shards = redis.call('GET', KEYS[2]) or ARGV[4]
local time = redis.call('TIME')
local reply = {shards, time[1], time[2]}
if shards ~= ARGV[4] then return reply end

local epoch = redis.call('GET', KEYS[3]) or ''
local pace = tonumber(string.match(epoch, '~(%d+)$') or 1)
local lapse = ARGV[5] * pace

local now = time[1] * 1000 + math.floor(time[2] / 1000)
local joined, left = {}, {}
-- An instance may not have heard yet that it should beat faster: it is gone when it was silent
-- for so many lapses of its own pace, too.
local function take(from, to, lapses)
  local found = redis.call('ZRANGEBYSCORE', KEYS[1], from, to, 'WITHSCORES')
  for i = 1, #found, 2 do
    if math.abs(now - found[i + 1]) >= lapses * ARGV[5] * (found[i + 1] % 1 * 16) then
      left[#left + 1] = found[i]
      redis.call('ZREM', KEYS[1], found[i])
    end
  end
end

-- A score of the future is that of another master's clock, or of one set back.
take(now + lapse, '+inf', 0)
-- While Redis or all machines stand still, nobody is heard, and that is no instance's own
-- silence: the first that is heard again must not take the others for gone. Two heartbeats of
-- it count, or those who have died would stay where the only one left is heard rarely. An
-- instance that is new does not know whether the others stood still or have died. A reader does
-- not know it either, and takes them for gone after twice the time.
local quiet = now - math.floor(redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or now)
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
take('-inf', now - lapses * lapse, lapses)
if ARGV[1] == 'register' then
  if redis.call('ZADD', KEYS[1], string.format('%.4f', now + pace / 16), ARGV[2]) == 1 then joined[1] = ARGV[2] end
  redis.call('SET', KEYS[2], shards, 'PX', ARGV[8])
  redis.call('HSET', KEYS[5], ARGV[2], ARGV[3])
  if ARGV[7] == '' then
    redis.call('HDEL', KEYS[6], ARGV[2])
  else
    redis.call('HSET', KEYS[6], ARGV[2], ARGV[7])
  end
elseif ARGV[1] == 'leave' and redis.call('ZREM', KEYS[1], ARGV[2]) == 1 then
  left[#left + 1] = ARGV[2]
end
for _, name in ipairs(left) do
  if name ~= joined[1] then
    redis.call('HDEL', KEYS[5], name)
    redis.call('HDEL', KEYS[6], name)
  end
end

local function text(s) return #s .. ':' .. s end
local count = redis.call('ZCARD', KEYS[1])
if #joined + #left > 0 or epoch == '' and count > 0 then
  local from = epoch
  local number = (string.match(from, '^%d+') or 0) + 1
  -- Nobody can be told what has changed since nothing.
  if from == '' then left, joined = {}, redis.call('ZRANGE', KEYS[1], 0, -1) end
  epoch = string.format('%d-%s', number, ARGV[10])
  local wanted = math.min(ARGV[13], math.ceil(count / ARGV[12]))
  if wanted > 1 then epoch = epoch .. '~' .. wanted end
  local said = {'2', time[1], time[2], text(from), text(epoch), #left}
  for _, name in ipairs(left) do said[#said + 1] = text(name) end
  for _, name in ipairs(joined) do said[#said + 1] = text(name) end
  said = table.concat(said, ' ')
  redis.call('SET', KEYS[3], epoch)
  redis.call('ZADD', KEYS[4], number, said)
  redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - ARGV[11])
  redis.call('PUBLISH', 'sluice:instances', said)
end
for i = 1, #KEYS do
  if i ~= 2 then redis.call('PEXPIRE', KEYS[i], ARGV[6]) end
end

reply[4] = epoch
if epoch == ARGV[9] then return reply end
local at = string.match(ARGV[9], '^(%d+)-')
local changes = at and redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. at, '+inf') or {}
if changes[1] and string.match(changes[1], '^2 %d+ %d+ %d+:(%S*) ') == ARGV[9] then
  reply[5] = 'changes'
else
  reply[5], changes = 'whole', redis.call('ZRANGE', KEYS[1], 0, -1)
end
for i, said in ipairs(changes) do reply[5 + i] = said end
return reply
