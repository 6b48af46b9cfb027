-- Holds each user to their share of bandwidth, down (response bodies) and up (request
-- bodies) apart, over all their transfers in this HAProxy. haproxy.cfg loads it and says
-- what it is asked; bandwidth_clock.lua decides.
--
-- A share is in units of 64 bytes per second. A request brings the user's shares in
-- txn.sluice.down and txn.sluice.up. Those that change during transfers are in the table
-- of backend sluice_share, where the agent teaches them: gpt0 is down, gpc0 is up; 0 or no
-- entry is what the newest request said.
--
-- What costs is calling Lua: 1 to 3 µs each, and several times that where threads wait for
-- one Lua, so each has its own. The filter has no callbacks but the payload's, which an
-- action arms; most small bodies need only a converter.

local Clock = require("bandwidth_clock")
-- The first of Sluice's sticky counters is an argument where a configuration uses counter 0 itself.
Clock.counter = tonumber((...)) or 0

local UNIT = 64
-- How often a user's entry in the table is looked at, ms.
local LOOK = 25
-- A user whom nobody asked about for one to two of these, ms, is forgotten: more than any
-- sender waits before it asks again.
local GENERATION = 2000
-- A filter's timer cannot be stopped, only set: to an hour from now.
local NEVER = 3600000

local core_now, wake, running = core.now, filter.wake_time, coroutine.running
local find, sub = string.find, string.sub
local take, pass = Clock.take, Clock.pass

-- now is HAProxy's time in ms; it never jumps.
local function now()
	local n = core_now()
	return n.sec * 1000 + n.usec / 1000
end

-- The users of this generation and of the one before. To forget is to drop the older one:
-- no pass over all of them, however many there are.
local young, old, born = {}, {}, 0

-- user is what this thread knows of a user: the shares that the newest request said
-- (own_down, own_up), those that were taught (down, up), and the clocks.
local function user(name, t)
	if t - born > GENERATION then
		young, old, born = {}, young, t
	end
	local u = young[name]
	if not u then
		u = old[name] or { name = name, looked = 0 }
		young[name] = u
	end
	return u
end

local shares -- the table, once HAProxy has read its configuration

-- look reads a user's entry unless it has just been looked at.
local function look(u, t)
	local dt = t - u.looked
	if dt < LOOK and dt >= 0 then return end
	u.looked = t
	shares = shares or core.backends["sluice_share"].stktable
	local e = shares:lookup(u.name)
	u.down, u.up = nil, nil
	-- HAProxy may remove an entry long after its time.
	if e and e.expire > 0 then
		if e.gpt0 > 0 then u.down = e.gpt0 end
		if e.gpc0 > 0 then u.up = e.gpc0 end
	end
end

-- The two directions, and where their parts of a user are.
local DOWN = { number = 0, own = "own_down", taught = "down", clock = "clock_down" }
local UP = { number = 1, own = "own_up", taught = "up", clock = "clock_up" }

-- clock is the user's clock of a direction at the present share.
local function clock(u, dir, t)
	look(u, t)
	local rate = (u[dir.taught] or u[dir.own]) * UNIT
	local c = u[dir.clock]
	if not c then
		c = Clock.new(dir.number, rate)
		u[dir.clock] = c
	end
	c.rate = rate
	return c
end

-- passes is a converter's work: "bytes user" is 1 if a body of so many bytes may pass as a
-- whole and is counted, and 0 if it needs the filter.
local function passes(dir)
	local clock_of = dir.clock
	return function(question)
		local blank = find(question, " ", 1, true)
		local bytes = sub(question, 1, blank - 1) + 0
		if bytes == 0 then return 1 end
		local u = young[sub(question, blank + 1)] -- no pass without a clock of this generation
		local c = u and u[clock_of]
		return c and pass(c, bytes) and 1 or 0
	end
end
core.register_converters("sluice_pass_down", passes(DOWN))
core.register_converters("sluice_pass_up", passes(UP))

local Filter = { id = "sluice", flags = filter.FLT_CFG_FL_HTX }
Filter.__index = Filter

-- The filter object of each stream, found by the coroutine in which HAProxy creates it and
-- runs the stream's actions.
local filters = setmetatable({}, { __mode = "k" })

function Filter:new()
	local f = setmetatable({}, Filter)
	filters[running()] = f
	return f
end

-- payload says how many of len bytes of one direction of a stream go on now.
local function payload(s, len, f)
	if len > 0 then
		local t = now()
		local u = user(s.name, t)
		u[s.dir.own] = u[s.dir.own] or s.share
		local sent, ms = take(clock(u, s.dir, t), s, len, t, f)
		if ms then
			wake(ms)
			s.waits = true
			return sent
		end
	end
	if s.waits then
		wake(NEVER)
		s.waits = nil
	end
	return len
end

function Filter:http_payload(txn, msg)
	local s = self.only or (msg.channel:is_resp() and self.down or self.up)
	return payload(s, msg:input(), txn.f)
end

-- After 101 Switching Protocols and CONNECT.
function Filter:tcp_payload(txn, channel)
	local s = self.only or (channel:is_resp() and self.down or self.up)
	return payload(s, channel:input(), txn.f)
end

core.register_filter("sluice", Filter, function(f) return f end)

-- arm is an action's work: from here on the body goes through the filter. Its size is in
-- txn.sluice_down_size if known. The clock's base becomes txn.sluice_down_base, if set.
local function arm(dir, side)
	local share_var, size_var, base_var = "txn.sluice." .. side, "txn.sluice_" .. side .. "_size", "txn.sluice_" .. side .. "_base"
	return function(txn)
		local f, name, share = filters[running()], txn:get_var("txn.sluice_user"), txn:get_var(share_var)
		if not f or not name or not share then return end
		if not txn.f:sc_get_gpt(4 + dir.number, Clock.counter) then return end -- the table is full: not limited
		local t = now()
		local u = user(name, t)
		u[dir.own] = share
		local c = clock(u, dir, t)
		local size = txn:get_var(size_var)
		local s = { name = name, dir = dir, share = share, left = 0, rest = size, small = size and Clock.is_small(c, size) }
		f[side] = s
		if f.down and f.up then f.only = nil else f.only = s end
		local base = Clock.rebase(c, t, txn.f)
		if base then txn:set_var(base_var, base) end
		filter.register_data_filter(f, side == "down" and txn.res or txn.req)
	end
end
core.register_action("sluice_hold_down", { "http-res" }, arm(DOWN, "down"))
core.register_action("sluice_hold_up", { "http-req" }, arm(UP, "up"))
