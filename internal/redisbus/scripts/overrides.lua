-- Replaces what was set by hand by a later version.
--
-- KEYS  overrides
-- ARGV  the version, which begins with its number, the list, and how long it is needed, in milliseconds
-- Returns 1, or 0 if the version in force is as late.

local function number(version) return tonumber(string.match(version or '', '^%d+') or 0) end
if number(redis.call('HGET', KEYS[1], 'version') or '') >= number(ARGV[1]) then return 0 end
local ttl = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'list', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ttl)
return 1
