-- All that is done to a user's slots: one operation a call. Time is Redis', in
-- microseconds; so are all spans.
--
-- KEYS  the shard's waiting users, then the user's slots, line and places (not for
--       'waiting'); doc.go tells what is in them
-- ARGV  the operation, where in a key the user's name begins, the keys' time to live
--       in seconds; then what the operation needs, see the end

local call, sub, format = redis.call, string.sub, string.format
local waiting, slots, line, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local user = slots and sub(slots, tonumber(ARGV[2]))
local t = call('TIME')
local now = t[1] * 1000000 + t[2]

-- The user's slots, as load finds them.
local taken                  -- job -> state (h: held, r: reserved), till, order, queue, holder
local running, used          -- slots in total, and by queue
local reserved, last, latest -- reservations, the order of the last one, and when all is over
local lapsed                 -- whether a reservation was over

local function text(n) return format('%.0f', n) end

-- load reads the slots, and frees those that are over.
local function load()
  taken, running, used, reserved, last, latest, lapsed = {}, 0, {}, 0, 0, now, false
  local stored = call('HGETALL', slots)
  for i = 1, #stored, 2 do
    local id, s = stored[i], stored[i + 1]
    local state, till = sub(s, 1, 1), tonumber(sub(s, 2, 17))
    if till <= now then
      call('HDEL', slots, id)
      lapsed = lapsed or state == 'r'
    else
      local to = 36 + tonumber(sub(s, 34, 36))
      local queue = sub(s, 37, to)
      local order = tonumber(sub(s, 18, 33))
      taken[id] = {state, till, order, queue, sub(s, to + 1)}
      running = running + 1
      used[queue] = (used[queue] or 0) + 1
      if till > latest then latest = till end
      if state == 'r' then
        reserved = reserved + 1
        if order > last then last = order end
      end
    end
  end
end

local function expire(key, till)
  call('EXPIRE', key, text(ARGV[3] + math.ceil((till - now) / 1000000)))
end

-- put writes a slot: one that is new, is held from now on, or is renewed.
local function put(id, state, till, order, queue, holder)
  call('HSET', slots, id, format('%s%016.0f%016.0f%03d', state, till, order, #queue) .. queue .. holder)
  local s = taken[id]
  if not s then
    running = running + 1
    used[queue] = (used[queue] or 0) + 1
  elseif s[1] == 'r' then
    reserved = reserved - 1
  end
  if state == 'r' then reserved = reserved + 1 end
  taken[id] = {state, till, order, queue, holder}
  if till > latest then latest = till end
end

local function free(id)
  local s = taken[id]
  call('HDEL', slots, id)
  taken[id] = nil
  running = running - 1
  used[s[4]] = used[s[4]] - 1
  if s[1] == 'r' then reserved = reserved - 1 end
end

-- A member of the line is the length of the queue, the queue, order, job: those of a
-- queue begin with this, and are before it and ':'.
local function of(queue) return format('%03d', #queue) .. queue end

-- spot takes a member apart: queue, order, job, and where the queue ends.
local function spot(member)
  local to = 3 + tonumber(sub(member, 1, 3))
  return sub(member, 4, to), sub(member, to + 1, to + 16), sub(member, to + 17), to
end

-- heads are the first of each queue's line: queue, order, job.
local function heads()
  local list, from = {}, '-'
  while true do
    local first = call('ZRANGEBYLEX', line, from, '+', 'LIMIT', 0, 1)[1]
    if not first then return list end
    local queue, order, id, to = spot(first)
    list[#list + 1] = {queue, order, id}
    from = '(' .. sub(first, 1, to) .. ':'
  end
end

-- place is where a parked job stands: order, queue.
local function place(id)
  local p = call('HGET', places, 'j' .. id)
  if p then return sub(p, 1, 16), sub(p, 17) end
end

local function unpark(id, order, queue)
  call('ZREM', line, of(queue) .. order .. id)
  call('HDEL', places, 'j' .. id)
end

-- settle ends what may have changed who waits: the line has so many queues.
local function settle(queues)
  if queues == 0 then call('DEL', places) end
  if queues == 0 and reserved == 0 then
    call('ZREM', waiting, user)
    return
  end
  call('ZADD', waiting, 0, user)
  expire(waiting, latest)
  if queues > 0 then
    expire(line, now)
    expire(places, now)
  end
end

-- limits are ARGV's from a place on: the total, that of each queue that is not named, then
-- queue and limit by turns.
local function limits(at)
  local total, others, l = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), {}
  for i = at + 2, #ARGV, 2 do l[ARGV[i]] = tonumber(ARGV[i + 1]) end
  return total, function(queue) return (used[queue] or 0) < (l[queue] or others) end
end

local run = {}

-- job, holder, queue, lease, whether to park, the most that may be parked, limits
-- -> granted, running, in the queue, place
function run.acquire()
  local id, holder, queue, till = ARGV[4], ARGV[5], ARGV[6], now + ARGV[7]
  local total, room = limits(10)
  local function granted()
    put(id, 'h', till, 0, queue, holder)
    expire(slots, latest)
    return {1, running, used[queue], 0}
  end

  local s = taken[id]
  if s then
    queue = s[4]
    local reply = granted()
    if s[1] == 'r' or lapsed then settle(#heads()) end
    return reply
  end

  local first = heads()
  local order
  if #first > 0 then
    local at, stands = place(id)
    if at then order, queue = at, stands end
  end
  local gets = running < total and room(queue)
  for i = 1, gets and #first or 0 do
    gets = gets and ((order and first[i][2] >= order) or not room(first[i][1]))
  end
  if gets then
    if order then unpark(id, order, queue) end
    local reply = granted()
    if order or lapsed then settle(order and #heads() or #first) end
    return reply
  end

  local rank = 0
  if order then
    rank = 1
    for i = 1, #first do
      local from = of(first[i][1])
      rank = rank + call('ZLEXCOUNT', line, '[' .. from, '(' .. from .. order)
    end
  elseif ARGV[8] == '1' and call('ZCARD', line) < tonumber(ARGV[9]) then
    order = format('%016d', call('HINCRBY', places, 'n', 1))
    call('HSET', places, 'j' .. id, order .. queue)
    call('ZADD', line, 0, of(queue) .. order .. id)
    rank = call('ZCARD', line)
  end
  if order or lapsed then settle(rank > 0 and 1 or #first) end
  return {0, running, used[queue] or 0, rank}
end

-- job ('' for none), holder, span of the reservations, limits
-- -> job and queue by turns
function run.release()
  local id, total, room = ARGV[4], limits(7)
  local s = taken[id]
  if s and s[1] == 'h' and s[5] == ARGV[5] then free(id) end

  local reserved = {}
  local first = heads()
  while #first > 0 and running < total do
    local best
    for _, head in ipairs(first) do
      if (not best or head[2] < best[2]) and room(head[1]) then best = head end
    end
    if not best then break end
    unpark(best[3], best[2], best[1])
    last = last + 1
    put(best[3], 'r', now + ARGV[6], last, best[1], '')
    reserved[#reserved + 1], reserved[#reserved + 2] = best[3], best[1]
    first = heads()
  end
  if #reserved > 0 then expire(slots, latest) end
  if #reserved > 0 or #first > 0 or lapsed then settle(#first) end
  return reserved
end

-- lease, then job and holder by turns -> for each, whether it was renewed
function run.renew()
  local kept = {}
  for i = 5, #ARGV, 2 do
    local s = taken[ARGV[i]]
    local holds = s and s[1] == 'h' and s[5] == ARGV[i + 1]
    if holds then put(ARGV[i], 'h', now + ARGV[4], 0, s[4], s[5]) end
    kept[#kept + 1] = holds and 1 or 0
  end
  expire(slots, latest)
  local queues = #heads()
  if queues > 0 or lapsed then settle(queues) end
  return kept
end

-- job
function run.forget()
  local id = ARGV[4]
  if taken[id] and taken[id][1] == 'r' then free(id) end
  local order, queue = place(id)
  if order then unpark(id, order, queue) end
  settle(#heads())
  return {}
end

-- -> six texts of each slot: state, order, queue, holder, job and what is left
function run.slots()
  local list = {}
  for id, s in pairs(taken) do
    for _, value in ipairs({s[1], format('%016.0f', s[3]), s[4], s[5], id, text(s[2] - now)}) do list[#list + 1] = value end
  end
  if lapsed then settle(#heads()) end
  return list
end

-- -> what slots returns, and the same of the parked jobs, whose state is p
function run.user()
  local list = run.slots()
  for _, member in ipairs(call('ZRANGE', line, 0, -1)) do
    local queue, order, id = spot(member)
    for _, value in ipairs({'p', order, queue, '', id, '0'}) do list[#list + 1] = value end
  end
  return list
end

-- the user after whom to begin, how many, what the keys of slots, lines and places
-- begin with -> users. Those who wait no more are found here, and dropped.
function run.waiting()
  local found, from, n = {}, '(' .. ARGV[4], tonumber(ARGV[5])
  if ARGV[4] == '' then from = '-' end
  while #found < n do
    local page = call('ZRANGEBYLEX', waiting, from, '+', 'LIMIT', 0, text(n - #found))
    if #page == 0 then break end
    for _, name in ipairs(page) do
      user, slots, line, places = name, ARGV[6] .. name, ARGV[7] .. name, ARGV[8] .. name
      local waits = call('EXISTS', line) == 1
      if not waits then
        load()
        waits = reserved > 0
        if not waits then settle(0) end
      end
      if waits then found[#found + 1] = name end
      from = '(' .. name
    end
  end
  return found
end

if ARGV[1] ~= 'waiting' then load() end
return run[ARGV[1]]()
