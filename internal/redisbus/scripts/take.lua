-- Takes tokens from pools and reports to them: ratelimit.Take, ask by ask. Pools of which half
-- or more is handed out are published when they change, or when they are found empty by an
-- instance that does not know it. Of the others those of windows longer than a second are
-- published when they begin, and when they pass another 32nd of the limit.
--
-- KEYS  one hash for each window: class|user -> total; then, if the call has a number,
--       that of the last call of the same kind, agent and shard
-- ARGV  the usage message's head, the command that publishes it, its channel, for how many
--       seconds a hash outlives its window, the
--       call's number or 0, for how many seconds it is remembered; then for each hash
--       the second at which the window begins, its longest length, the number n of asks, their n
--       fields, and n times: debt - back, need, ahead, limit, instances, reserve, and 1 if the
--       instance does not know that the window is spent, else 0. A field that
--       does not exist is a pool that begins with the reserve handed out.
-- Returns Redis' time (seconds, microseconds), then for each ask: tokens, total. A call
-- whose number is not above the last one was heard before: it changes nothing.

local tonumber, format, floor = tonumber, string.format, math.floor
local reply, out = redis.call('TIME'), 2
local usage, said = {ARGV[1]}, 1
local at = 7

local hashes, heard = #KEYS, false
-- A Redis that was stopped goes on with what it was sent, after the agent has sent it again.
if ARGV[5] ~= '0' then
  local last = KEYS[hashes]
  hashes = hashes - 1
  heard = (tonumber(redis.call('GET', last) or 0) or 0) >= tonumber(ARGV[5])
  if not heard then redis.call('SET', last, ARGV[5], 'EX', ARGV[6]) end
end

for k = 1, hashes do
  local n = tonumber(ARGV[at + 2])
  local field, num = at + 3, at + 3 + n
  local stored = redis.call('HMGET', KEYS[k], unpack(ARGV, field, num - 1))
  local totals, write, written = {}, {}, 0 -- totals: of what this call changed
  local head, told, telling = said, {}, 0 -- told: totals to publish, whose fields usage has
  said = said + 2

  for i = 1, n do
    local name = ARGV[field]
    local reserve = tonumber(ARGV[num + 5])
    local before = totals[name] or tonumber(stored[i] or nil) -- nil: there is no pool yet
    if not before and reserve == 0 then before = 0 end

    local total, tokens = before or reserve, 0
    if not heard then
      total = total + ARGV[num]
      if total < 0 then total = 0 end
      local free = ARGV[num + 3] - total
      if free < 0 then free = 0 end
      tokens = tonumber(ARGV[num + 1])
      if tokens > free then tokens = free end
      local ahead = tonumber(ARGV[num + 2])
      -- Half of an even part of the rest: the last tokens are for requests that exist, not for those that may come.
      if ahead > 0 then
        local most = floor((free - tokens) / (2 * ARGV[num + 4]))
        if ahead > most then ahead = most end
        tokens = tokens + ahead
      end
      total = total + tokens
    end

    local text = format('%d', total) -- faster than what Lua and Redis do with a number
    -- One that is asked twice in a call goes on from here, for the hash is written once.
    if total ~= before and not heard then
      totals[name] = total
      write[written + 1], write[written + 2] = name, text
      written = written + 2
    end
    if not heard then
      local limit, tell = tonumber(ARGV[num + 3]), false
      if 2 * total >= limit then
        tell = total ~= before or ARGV[num + 6] == '1' and tokens < tonumber(ARGV[num + 1])
      elseif ARGV[at + 1] ~= '1' and total ~= before then
        tell = (before or 0) == 0 or floor(32 * total / limit) ~= floor(32 * before / limit)
      end
      if tell then
        telling, said = telling + 1, said + 1
        told[telling], usage[said] = text, #name .. ':' .. name
      end
    end
    reply[out + 1], reply[out + 2] = tokens, total
    out = out + 2
    field, num = field + 1, num + 7
  end

  -- Of a hash that nothing is said of its head is taken back too: most calls publish nothing.
  if telling > 0 then
    usage[head + 1], usage[head + 2] = ARGV[at], telling
    for i = 1, telling do usage[said + i] = told[i] end
    said = said + telling
  else
    said = head
  end
  if written > 0 then
    -- A hash comes into being by a new field, so it always has its time to live: until
    -- a while after the window, whatever the agent took for the time.
    if redis.call('HSET', KEYS[k], unpack(write)) > 0 then
      local length, spare = tonumber(ARGV[at + 1]), tonumber(ARGV[4])
      local left = ARGV[at] + length + spare - reply[1]
      left = math.max(spare + 1, math.min(length + spare, left))
      redis.call('EXPIRE', KEYS[k], format('%d', left))
    end
  end
  at = num
end

if said > 1 then
  -- SPUBLISH in a Redis Cluster, which has no such command before version 7.
  local message = table.concat(usage, ' ', 1, said)
  if type(redis.pcall(ARGV[2], ARGV[3], message)) == 'table' then redis.call('PUBLISH', ARGV[3], message) end
end
return reply
