-- Takes tokens from accounts and reports to them: ratelimit.Account.Take, ask by ask. Those of
-- which half or more of the limit and the burst together is handed out in a second are
-- published, as scripts/take.lua does.
--
-- KEYS  for each ask its account: "second credit before total next"; then, if the call
--       has a number, that of the last call of the same kind, agent and shard
-- ARGV  the usage message's head, the command that publishes it, its channel, the call's number
--       or 0, for how many seconds it is remembered; then for each ask: its second, what the usage
--       message says before its total, debt, back, need, ahead, limit, burst, instances,
--       and 1 if the instance does not know that the second is spent, else 0
-- Returns Redis' time (seconds, microseconds), then for each ask: tokens, total, limit.
-- A call whose number is not above the last one was heard before: it counts nothing.

local tonumber, format = tonumber, string.format
local max, min, floor = math.max, math.min, math.floor
local reply, out = redis.call('TIME'), 2
local now = tonumber(reply[1])
-- 10 ms early, for agents whose clocks are a little ahead: what is asked for the second before is still granted.
if tonumber(reply[2]) >= 990000 then now = now + 1 end
local usage, said = {ARGV[1]}, 1
local at = 6

local accounts, heard = #KEYS, false
-- A Redis that was stopped goes on with what it was sent, after the agent has sent it again. Either lets the seconds pass.
if ARGV[4] ~= '0' then
  local last = KEYS[accounts]
  accounts = accounts - 1
  heard = (tonumber(redis.call('GET', last) or 0) or 0) >= tonumber(ARGV[4])
  if not heard then redis.call('SET', last, ARGV[4], 'EX', ARGV[5]) end
end

for k = 1, accounts do
  local asked, debt, back = tonumber(ARGV[at]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local need, ahead = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  if heard then debt, back, need, ahead = 0, 0, 0, 0 end
  local limit, burst, instances = tonumber(ARGV[at + 6]), tonumber(ARGV[at + 7]), tonumber(ARGV[at + 8])
  local function left(credit, used) return max(0, min(burst, credit + limit - used)) end

  local stored = redis.call('GET', KEYS[k]) or ''
  local s, c, b, t, n = string.match(stored, '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  local second, credit = tonumber(s or 0), tonumber(c or 0)
  local totals = {tonumber(b or 0), tonumber(t or 0), tonumber(n or 0)} -- before, now, next

  -- The clock was set back. As if all of the limit was used: one that jumps back and forth gives nothing away.
  if now < second - 2 then
    second, credit, totals = now, 0, {limit, 0, 0}
  end
  local gap = max(0, now - second)
  second = second + gap
  -- After three steps nothing is used of any second that is kept, and each further one only adds the limit.
  for i = 1, min(gap, 3) do
    credit = left(credit, totals[1])
    totals = {totals[2], totals[3], 0}
  end
  if gap > 3 then
    -- Numbers of Lua do not overflow: what is too large is more than any burst.
    local idle = (gap - 3) * limit
    if limit > 0 and idle <= burst - credit then credit = credit + idle else credit = burst end
  end

  local which, room = asked - second + 2, nil
  if which == 1 then
    room = credit + limit - max(0, totals[2] - limit)
  elseif which == 2 then
    room = left(credit, totals[1]) + limit
  elseif which == 3 then
    room = limit
  end

  local tokens, total = 0, 0
  if room then
    total = max(0, totals[which] + debt - back)
    local free = max(0, room - total)
    tokens = min(need, free)
    tokens = tokens + min(ahead, floor((free - tokens) / (2 * instances)))
    total = total + tokens
    if not heard and 2 * total >= limit + burst and (total ~= totals[which] or ARGV[at + 9] == '1' and tokens < need) then
      usage[said + 1], usage[said + 2] = ARGV[at + 1], format('%d', total)
      said = said + 2
    end
    totals[which] = total
  -- Of a second that is over, or not begun, nothing is handed out. What has run in it has run.
  else
    credit = max(0, credit - debt)
  end

  -- It is kept until its credit is full again without it, but no longer than a day.
  local missing = burst - left(left(left(credit, totals[1]), totals[2]), totals[3])
  local keep = 12
  if limit > 0 then keep = min(86400, keep + math.ceil(missing / limit)) end
  redis.call('SET', KEYS[k], format('%d %d %d %d %d', second, credit, totals[1], totals[2], totals[3]),
    'EX', format('%d', keep))

  reply[out + 1], reply[out + 2], reply[out + 3] = tokens, total, max(0, room or 0)
  out = out + 3
  at = at + 10
end

if said > 1 then
  -- SPUBLISH in a Redis Cluster, which has no such command before version 7.
  local message = table.concat(usage, ' ')
  if type(redis.pcall(ARGV[2], ARGV[3], message)) == 'table' then redis.call('PUBLISH', ARGV[3], message) end
end
return reply
