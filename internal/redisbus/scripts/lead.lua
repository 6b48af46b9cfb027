-- Makes a candidate the leader, or keeps it, or lets it resign.
--
-- KEYS  leader (a hash: name, address), shards
-- ARGV  'lead' or 'resign', the candidate, number of shards; for 'lead' also the times to live of the
--       lease and of the number of shards, in milliseconds, and the candidate's address
-- Returns the number of shards in force (if it is another, nothing was done), the leader and its address.

-- A polygen that looks for users in other shards must not lead: no agent would find what it decides.
local shards = redis.call('GET', KEYS[2]) or ARGV[3]
if shards ~= ARGV[3] then return {shards} end

local leader = redis.call('HGET', KEYS[1], 'name') or ''
if ARGV[1] == 'resign' then
  if leader == ARGV[2] then redis.call('DEL', KEYS[1]) end
  return {shards, '', ''}
end
redis.call('SET', KEYS[2], shards, 'PX', ARGV[5])
if leader == '' or leader == ARGV[2] then
  redis.call('HSET', KEYS[1], 'name', ARGV[2], 'address', ARGV[6])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return {shards, redis.call('HGET', KEYS[1], 'name'), redis.call('HGET', KEYS[1], 'address')}
