-- Reads what was set by hand, or replaces it if nobody else has meanwhile.
--
-- KEYS  overrides
-- ARGV  'read' and the version that the caller knows, or
--       'keep', the version that it replaces ('' for none), the new version and list,
--       and how long they are needed, in milliseconds
-- Returns the version in force then, '' for none; when a reader does not know that
-- version, the list too. The list is kept at least as long as the one before it would
-- have been, so that a polygen that missed a removal can still find it later.

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
