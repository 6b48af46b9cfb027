-- An instance's heartbeat while nothing has changed: it costs the same in a cluster of any size.
--
-- KEYS  instances, shards, epoch
-- ARGV  the instance, number of shards, the epoch that it knows, Redis' time at its last
--       heartbeat, after how long without one nobody may have been heard, lapse, time to live
--       of the number of shards, all in milliseconds; how many instances the epoch has if all
--       are to be looked at, else ''; the fraction of a score that tells the pace
-- Returns Redis' time (seconds, microseconds), or 0 if scripts/registry.lua has to decide:
-- then nothing was done.

local call, format = redis.call, string.format
local said = call('MGET', KEYS[2], KEYS[3])
if said[1] ~= ARGV[2] or said[2] ~= ARGV[3] then return 0 end
local time = call('TIME')
local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local since = now - ARGV[4]
if since < 0 or since > ARGV[5] + 0 then return 0 end

if ARGV[8] ~= '' then
  -- Whoever is missing here is silent, or of another clock.
  if call('ZCOUNT', KEYS[1], format('(%d', now - ARGV[6]), format('(%d', now + ARGV[6])) ~= ARGV[8] + 0 then return 0 end
  call('PEXPIRE', KEYS[2], ARGV[7])
end
-- It changes no score if it is not there any more, or was heard in this millisecond.
if call('ZADD', KEYS[1], 'XX', 'CH', format('%d', now) .. ARGV[9], ARGV[1]) == 0 then return 0 end -- faster than what Lua does with a number
return time
