-- Publishes messages, in order.
--
-- KEYS  limits: its slot makes one node of a Redis Cluster, and so one link to
--       each subscriber's node, carry all policies; their order is kept
-- ARGV  the messages

for i = 1, #ARGV do
  redis.call('PUBLISH', 'sluice:policies', ARGV[i])
end
return #ARGV
