-- Keeps what one instance has in progress and moves of users with bandwidth
-- limits, and tells polygen.
--
-- KEYS  one for each user
-- ARGV  the keys' time to live in seconds, the message; then for each user what to
--       keep of that user, "" for nothing

for i, key in ipairs(KEYS) do
  local kept = ARGV[i + 2]
  if kept == '' then
    redis.call('DEL', key)
  else
    redis.call('SET', key, kept, 'EX', ARGV[1])
  end
end
redis.call('PUBLISH', 'sluice:demand', ARGV[2])
return 1
