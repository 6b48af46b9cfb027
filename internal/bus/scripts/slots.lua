-- Tells the pools of users' slots what an instance runs, and asks them for slots:
-- concurrency.Take, ask by ask, on what live instances hold.
--
-- KEYS  for each ask the user's hash: instance -> "held active seq ms", the last
--       being Redis' time of the write
-- ARGV  the instance, the progress message's head, where in a key the user begins,
--       the hashes' time to live in seconds, for how many milliseconds after its
--       write a field needs no live instance; then for each ask: want, active,
--       seq, refused, limit, portion; then the live instances
-- Returns Redis' time (seconds, microseconds), then for each ask: held, free.

local call, match, format = redis.call, string.match, string.format
local instance, from, fresh = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[5])
local reply, out = call('TIME'), 2
local now = reply[1] * 1000 + math.floor(reply[2] / 1000)
local stamp = format(' %d', now)
local said, words = {ARGV[2]}, 1
local at = 6

local live, count -- made when they are needed: most fields are fresh
local function lives(name)
  if not live then
    live, count = {}, 0 -- how many there are besides the instance
    for i = 6 + 6 * #KEYS, #ARGV do
      local one = ARGV[i]
      if one ~= instance and not live[one] then count = count + 1 end
      live[one] = true
    end
  end
  return live[name]
end

for k = 1, #KEYS do
  local key = KEYS[k]
  local held, seq = 0, 0 -- the instance's own
  local active = 0 -- of all, before this ask
  local ours, others = 0, 0 -- active here, held elsewhere
  local limit, portion = tonumber(ARGV[at + 4]), tonumber(ARGV[at + 5])
  local heard = 0 -- live instances that have a field, but for this one
  -- Users who cannot have credit have no portion. Of the others, a field that is as old
  -- as a hash may become counts as none, as if the hash had expired.
  local oldest = portion > 0 and now - 1000 * ARGV[4] or 0
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
    elseif (now - ms <= fresh and ms - now <= fresh) or (ms > oldest and lives(name)) then
      others = others + h
      active = active + a
      if portion > 0 and lives(name) then heard = heard + 1 end
    else
      call('HDEL', key, name)
    end
  end

  if portion > 0 then
    lives(instance)
    others = others + portion * (count - heard)
  end
  if ARGV[at + 2] + 0 > seq then
    local want, runs = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    local more, room = want - held, limit - others - held
    if more > room then more = room end
    if more > 0 then held = held + more end
    if held > want then held = want end
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
  call('PUBLISH', 'sluice:progress', table.concat(said, ' '))
end
return reply
