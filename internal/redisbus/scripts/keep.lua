-- Renews the limits' time to live if they are still those of a version.
--
-- KEYS   limits
-- ARGV   version, time to live in seconds
-- Returns 1 if they are.

-- Another polygen has published others, or nothing is there: not to be kept alive by who knows other limits.
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then
  return 0
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
