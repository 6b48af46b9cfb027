-- Makes a candidate the leader, or keeps it, and leases it parts of the users; or lets it resign.
--
-- KEYS  leader, shards, polygens (a hash: candidate -> the number of what it asked last, when, and for how long that
--       holds in milliseconds: below 0 of one that resigned), and the parts
-- ARGV  'lead' or 'resign', candidate, number of shards, time to live of the
--       leadership, the leases and the candidate, and of the number of shards, in milliseconds; the number of what is asked,
--       how many parts to take, how many to give back, these (the first one is 0), and then those that it would take, in
--       that order
-- Returns the number of shards in force (in which case, if it is another, nothing
-- was done), the leader, which parts are free, those that the candidate holds, and the polygens that were
-- heard lately. An ask that is not above the last one heard changes nothing, and is answered with the
-- leader alone.

-- Who looks for users in other shards must not lead: nobody would find what it decides.
local shards = redis.call('GET', KEYS[2]) or ARGV[3]
if shards ~= ARGV[3] then return {shards} end

local candidate, ttl = ARGV[2], tonumber(ARGV[4])
local leader = redis.call('GET', KEYS[1]) or ''
local last = redis.call('HGET', KEYS[3], candidate)
-- One that waited in a Redis that was stopped: what it gave back may be taken again since.
if last and tonumber(string.match(last, '^%d+')) >= tonumber(ARGV[6]) then return {shards, leader, {}, {}, {}} end

local resigns = ARGV[1] == 'resign'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Of one that resigned the number is kept as long as an ask of its may be under way: that one would lead and
-- hold parts again, and nobody would decide about them. It holds for less than nothing, and so is none of the polygens.
redis.call('HSET', KEYS[3], candidate, string.format('%s %.0f %.0f', ARGV[6], now, resigns and -ttl or ttl))
-- Another candidate may have said that it holds for longer.
redis.call('PEXPIRE', KEYS[3], math.max(ttl, redis.call('PTTL', KEYS[3])))
if resigns then
  if leader == candidate then redis.call('DEL', KEYS[1]) end
else
  redis.call('SET', KEYS[2], shards, 'PX', ARGV[5])
  if leader == '' or leader == candidate then
    leader = candidate
    redis.call('SET', KEYS[1], leader, 'PX', ttl)
  end
end

local given, holders = {}, {}
for i = 9, 8 + ARGV[8] do given[tonumber(ARGV[i])] = true end
for part = 0, #KEYS - 4 do
  holders[part] = redis.call('GET', KEYS[4 + part])
  if holders[part] == candidate and (resigns or given[part]) then
    redis.call('DEL', KEYS[4 + part])
    holders[part] = false
  end
end
if resigns then return {shards, leader, {}, {}, {}} end

local take = tonumber(ARGV[7])
for i = 9 + ARGV[8], #ARGV do
  local part = tonumber(ARGV[i])
  if take > 0 and not holders[part] then
    holders[part], take = candidate, take - 1
  end
end
local free, held = {}, {}
for part = 0, #KEYS - 4 do
  if holders[part] == candidate then
    redis.call('SET', KEYS[4 + part], candidate, 'PX', ttl)
    held[#held + 1] = part
  elseif not holders[part] then
    free[#free + 1] = part
  end
end

local heard, polygens = redis.call('HGETALL', KEYS[3]), {}
for i = 1, #heard, 2 do
  local at, holds = string.match(heard[i + 1], '^%d+ (%d+) (%-?%d+)')
  local age = math.abs(now - at)
  -- One of the future was heard by another master's clock, or by one that was set back.
  if age < tonumber(holds) then
    polygens[#polygens + 1] = heard[i]
  elseif age >= math.abs(holds) then
    redis.call('HDEL', KEYS[3], heard[i])
  end
end
return {shards, leader, free, held, polygens}
