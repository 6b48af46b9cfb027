-- Tells the pools of users' slots what an instance runs, and asks them for slots:
-- concurrency.Take, ask by ask, on what live instances hold.
--
-- KEYS  the shard's instances, see scripts/alive.lua; then for each ask the user's hash:
--       instance -> "held active seq ms", the last being Redis' time of the write
-- ARGV  the instance, the progress message's head, where in a key the user begins,
--       the hashes' time to live in seconds, for how many milliseconds after its
--       write a field needs no live instance, how many instances the caller knows, lapse
--       of an instance that holds slots and of any other one in milliseconds; the command that
--       publishes the message, its channel; then for each ask: want, active, seq, refused,
--       limit, portion
-- Returns Redis' time (seconds, microseconds), then for each ask: held, free.

local call, match, format = redis.call, string.match, string.format
local instance, from, fresh, lapse = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[7])
local reply, out = call('TIME'), 2
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
local stamp = format(' %d', now)
local said, words = {ARGV[2]}, 1
local at = 11
local forgotten = now - 1000 * ARGV[4] -- when what has just expired was written

local counted -- up to when silence counts; made when it is needed
local function silentFor(span)
  if not counted then
    -- Time in which nobody was heard is no silence.
    local last = call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2] or now
    counted = math.min(now, last + lapse / 3)
  end
  return counted - span
end

local count -- of the live instances; made when it is needed
local function instances()
  if not count then
    count = call('ZCOUNT', KEYS[1], format('(%.0f', silentFor(ARGV[8])), format('(%.0f', now + lapse))
    count = math.max(1, count, ARGV[6] + 0)
  end
  return count
end

-- Whether an instance that has not written lately is gone: what it wrote is a word of it, too.
-- Of whom the shard has never heard, or by another clock, only the field tells.
local function gone(name, ms)
  local heard = call('ZSCORE', KEYS[1], name)
  if heard and heard - now < lapse then
    heard = heard + 0
    if ms > heard and ms <= now then heard = ms end
    return heard <= silentFor(lapse)
  end
  return ms <= forgotten or ms - now >= now - forgotten
end

for k = 2, #KEYS do
  local key = KEYS[k]
  local held, seq = 0, 0 -- the instance's own
  local active = 0 -- of all, before this ask
  local ours, others = 0, 0 -- active here, held elsewhere
  local limit, portion = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local want, runs = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
  local heard = 0 -- other instances that have a field
  local stale, n = {}, 0 -- name, held, active and time of those who may be gone
  local stored = call('HGETALL', key)
  for i = 1, #stored, 2 do
    local name = stored[i]
    local h, a, s, ms = match(stored[i + 1], '^(%d+) (%d+) (%d+) (%d+)$')
    if h then h, a, s, ms = h + 0, a + 0, s + 0, ms + 0 end -- faster than tonumber
    -- From 2^53 on numbers are not exact, and none was written here.
    if not h or h >= 2^53 or a >= 2^53 or s >= 2^53 or ms >= 2^53 then
      call('HDEL', key, name)
    elseif name == instance then
      held, ours, seq = h, a, s
      active = active + a
    elseif ms <= forgotten then
      -- Who holds anything says so again every ten seconds. A field that is as old as a hash may
      -- become counts as none, as if the hash had expired: a replica that was behind has fields
      -- of live instances that have given back what they say, and others keep the hash.
      call('HDEL', key, name)
    else
      others, active, heard = others + h, active + a, heard + 1
      if now - ms > fresh or ms - now > fresh then
        stale[n + 1], stale[n + 2], stale[n + 3], stale[n + 4] = name, h, a, ms
        n = n + 4
      end
    end
  end

  local unheard = portion > 0 and portion * math.max(0, instances() - 1 - heard) or 0
  -- While there is plenty it does not matter who is gone. Nobody is where as much is left
  -- as all portions together may be, so no live instance's can have been given away.
  if n > 0 and 10 * (others + unheard + math.max(want, runs, held)) >= 7 * limit then
    for i = 1, n, 4 do
      if gone(stale[i], stale[i + 3]) then
        call('HDEL', key, stale[i])
        others, active, heard = others - stale[i + 1], active - stale[i + 2], heard - 1
      end
    end
    unheard = portion > 0 and portion * math.max(0, instances() - 1 - heard) or 0
  end
  others = others + unheard
  -- An ask that was overtaken must not undo the later one: it is told what is held.
  if ARGV[at + 2] + 0 > seq then
    local more, room = want - held, limit - others - held
    if more > room then more = room end
    if more > 0 then held = held + more end
    if held > want then held = want end
    -- What runs is held, even above the limit: an instance that comes back registers what it has.
    if held < runs then held = runs end

    local text = format('%d', held) -- faster than what Lua does with a number
    call('HSET', key, instance, text .. ' ' .. ARGV[at + 1] .. ' ' .. ARGV[at + 2] .. stamp)
    call('EXPIRE', key, ARGV[4])

    if runs > ours then active = active - ours + runs end
    if active * 10 >= limit * 7 or ARGV[at + 3] ~= '0' then
      local user = key:sub(from)
      said[words + 1], said[words + 2], said[words + 3] = #user .. ':' .. user, text, ARGV[at + 1]
      said[words + 4], said[words + 5] = ARGV[at + 3], ARGV[at + 4]
      words = words + 5
    end
  end

  reply[out + 1], reply[out + 2] = held, limit - others - held
  out, at = out + 2, at + 6
end

if words > 1 then
  -- SPUBLISH in a Redis Cluster, which has no such command before version 7.
  local message = table.concat(said, ' ')
  if type(redis.pcall(ARGV[9], ARGV[10], message)) == 'table' then redis.call('PUBLISH', ARGV[10], message) end
end
return reply
