-- Charges users what requests may cost, and corrects what they were charged: cost.Pools.Take, ask
-- by ask. Pools are published when they begin, and when they pass another 32nd of the limit.
--
-- KEYS  the number of the last call of the same agent and shard, with what it granted; then for each
--       window two hashes, its own and that of the window before: unit|user -> charged, and how much
--       of that leaves no debt
-- ARGV  the usage message's head, the command that publishes it, its channel, the call's number, for
--       how many seconds that is remembered, for how many a hash outlives the next window, the
--       number of windows; for each window the second at which it begins, its longest length, and what its
--       name adds to that of a limit; then for each ask the number of its entries and 1 if it is
--       forced, else 0; and for each entry the number of its window, field, change, limit, and 1 if
--       the limit is in a dry run, else 0. A field that does not exist is a pool that has not begun.
-- Returns Redis' time (seconds, microseconds), then for each ask 1 if it is granted, else 0, and the
-- total of each entry. A call whose number is not above the last one was heard before: it changes
-- nothing, and grants what it did if it was the last one.

local tonumber, format, floor, max, min, match = tonumber, string.format, math.floor, math.max, math.min, string.match
local reply, out = redis.call('TIME'), 2
local windows = tonumber(ARGV[7])
local at = 8 + 3 * windows

local number = tonumber(ARGV[4])
local last, told = match(redis.call('GET', KEYS[1]) or '', '^(%d+) (%d+)$')
last = tonumber(last or 0)
local heard, granted = last >= number, {}

local pools = {} -- by key and field: charged (nil: not begun), due, position among the changed, 1 if published
local function pool(key, field)
  local fields = pools[key]
  if not fields then
    fields = {}
    pools[key] = fields
  end
  if not fields[field] then
    local charged, due = match(redis.call('HGET', key, field) or '', '^(%d+) (%d+)$')
    fields[field] = {tonumber(charged), tonumber(due)}
  end
  return fields[field]
end

-- What is in a pool, or what it begins with: the debt of the window before.
local function before(window, field, limit)
  local present = pool(KEYS[2 * window], field)
  if present[1] then return present, present[1] end
  local past = pool(KEYS[2 * window + 1], field)
  return present, max(0, min((past[1] or 0) - max(past[2] or 0, limit), limit))
end

local changed = {} -- pools, with window and field
local a = 0
while at <= #ARGV do
  a = a + 1
  local n, forced = tonumber(ARGV[at]), ARGV[at + 1] == '1'
  at = at + 2
  local fits = true
  for i = 0, n - 1 do
    local e = at + 5 * i
    local limit = tonumber(ARGV[e + 3])
    local _, total = before(tonumber(ARGV[e]), ARGV[e + 1], limit)
    reply[out + 2 + i] = total
    if not forced and ARGV[e + 4] == '0' and total + max(1, tonumber(ARGV[e + 2])) > limit then fits = false end
  end
  if heard then
    fits = last == number and told:sub(a, a) == '1'
  elseif fits then
    for i = 0, n - 1 do
      local e = at + 5 * i
      local window, field, change, limit = tonumber(ARGV[e]), ARGV[e + 1], tonumber(ARGV[e + 2]), tonumber(ARGV[e + 3])
      local present, total = before(window, field, limit)
      -- A pool that has not begun has nothing to give back: what was charged there is forgotten, or never was.
      if present[1] or change > 0 then
        local after = max(0, total + change)
        if not present[1] or floor(32 * after / limit) ~= floor(32 * total / limit) then present[4] = 1 end
        present[1], present[2] = after, max(present[2] or 0, limit)
        if ARGV[e + 4] == '1' then present[2] = max(present[2], after) end
        if not present[3] then
          changed[#changed + 1] = {window, field, present}
          present[3] = #changed
        end
        reply[out + 2 + i] = after
      end
    end
  end
  granted[a] = fits and 1 or 0
  reply[out + 1] = granted[a]
  out = out + 1 + n
  at = at + 5 * n
end

if heard then return reply end
redis.call('SET', KEYS[1], ARGV[4] .. ' ' .. table.concat(granted), 'EX', ARGV[5])

local usage = {ARGV[1]}
for i = 1, #changed do
  local window, field, present = changed[i][1], changed[i][2], changed[i][3]
  local key, start, length = KEYS[2 * window], ARGV[5 + 3 * window], tonumber(ARGV[6 + 3 * window])
  local total = format('%d', present[1])
  -- A hash comes into being by a new field, so it always has its time to live: the next window reads it.
  if redis.call('HSET', key, field, total .. ' ' .. format('%d', present[2])) > 0 then
    local spare = tonumber(ARGV[6])
    local left = max(spare + 1, min(2 * length + spare, start + 2 * length + spare - reply[1]))
    redis.call('EXPIRE', key, format('%d', left))
  end
  if present[4] then
    local unit, user = match(field, '^([^|]*)(|.*)$')
    local name = '$' .. unit .. ARGV[7 + 3 * window] .. user
    usage[#usage + 1] = start .. ' 1 ' .. #name .. ':' .. name .. ' ' .. total
  end
end
if #usage > 1 then
  -- SPUBLISH in a Redis Cluster, which has no such command before version 7.
  local message = table.concat(usage, ' ')
  if type(redis.pcall(ARGV[2], ARGV[3], message)) == 'table' then redis.call('PUBLISH', ARGV[3], message) end
end
return reply
