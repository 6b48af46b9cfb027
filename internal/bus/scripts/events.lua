-- Adds what one instance saw start and end in a second to the bucket of it, unless that was
-- done before: a call that timed out may have run, and is repeated.
--
-- KEYS  the bucket, and the hash of the reports that it has
-- ARGV  their time to live in seconds; the report; then fields, each with the number to add

local new = redis.call('HSETNX', KEYS[2], ARGV[2], 1)
redis.call('EXPIRE', KEYS[2], ARGV[1])
if new == 0 then
  return 0
end
for i = 3, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
