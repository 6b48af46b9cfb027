-- Reads what was set by hand, or replaces it if nobody else has meanwhile.
--
-- KEYS  overrides
-- ARGV  'read' and the version that the caller knows, or
--       'keep', the version that it replaces ('' for none), the new version and list,
--       and how long they are needed, in milliseconds
-- Returns the version in force then, '' for none; when reading another one than the
-- known, the list too. What was there is kept as long as it would have been, so that
-- whoever missed a removal finds that later, too.

local version = redis.call('HGET', KEYS[1], 'version') or ''
if ARGV[1] == 'read' then
  if version == '' or version == ARGV[2] then return {version} end
  return {version, redis.call('HGET', KEYS[1], 'list') or ''}
end

if version ~= ARGV[2] then return {version} end
local ttl = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[5]))
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'list', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ttl)
return {ARGV[3]}
