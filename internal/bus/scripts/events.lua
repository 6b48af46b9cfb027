-- Adds what one instance saw start and end in a second to the bucket of it.
--
-- KEYS  the bucket
-- ARGV  its time to live in seconds; then fields, each with the number to add

for i = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
