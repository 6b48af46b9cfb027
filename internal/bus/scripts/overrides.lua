-- Reads what was set by hand, or replaces it if nobody else has meanwhile.
--
-- KEYS  overrides
-- ARGV  'read' and the version that the caller knows, or
--       'keep', the version that it replaces ('' for none), the new version, list and
--       removals, and how long they are needed, in milliseconds
-- Returns the version in force then, '' for none; when a reader does not know that
-- version, the list and the removals too. They are kept at least as long as those before
-- them would have been: a polygen that was cut off for a while hears of a removal then, too.

local version = redis.call('HGET', KEYS[1], 'version') or ''
if ARGV[1] == 'read' then
  if version == '' or version == ARGV[2] then return {version} end
  return {version, redis.call('HGET', KEYS[1], 'list') or '', redis.call('HGET', KEYS[1], 'removed') or ''}
end

-- Somebody else was first: what they set is not in the caller's list, and would be lost.
if version ~= ARGV[2] then return {version} end
local ttl = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[6]))
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'list', ARGV[4], 'removed', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ttl)
return {ARGV[3]}
