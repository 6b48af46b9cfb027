-- Makes a candidate the leader, or keeps it, or lets it resign.
--
-- KEYS  leader, shards
-- ARGV  'lead' or 'resign', candidate, number of shards, time to live of the
--       leadership and of the number of shards in milliseconds
-- Returns the number of shards in force (in which case, if it is another, nothing
-- was done) and 1 if the candidate leads, else 0.

local shards = redis.call('GET', KEYS[2]) or ARGV[3]
if shards ~= ARGV[3] then return {shards, 0} end

local leader = redis.call('GET', KEYS[1]) or ARGV[2]
if ARGV[1] == 'resign' then
  if leader == ARGV[2] then redis.call('DEL', KEYS[1]) end
  return {shards, 0}
end
redis.call('SET', KEYS[2], shards, 'PX', ARGV[5])
if leader ~= ARGV[2] then return {shards, 0} end
redis.call('SET', KEYS[1], leader, 'PX', ARGV[4])
return {shards, 1}
