-- Tests of bandwidth_clock.lua, for any Lua from 5.3 on: TestClock runs them in HAProxy.
local Clock = require("bandwidth_clock")

local WRAP = 4294967296

-- counters are HAProxy's, of one user, with the same names.
local function counters(base)
	local f = { gpt = { [4] = base or 0, [5] = base or 0 }, gpc = { [0] = 0, 0, 0, 0 } }
	function f:sc_get_gpt(i) return self.gpt[i] end
	function f:sc_get_gpc(i) return self.gpc[i] end
	function f:sc_inc_gpc(i)
		self.gpc[i] = (self.gpc[i] + 1) % WRAP
		return self.gpc[i]
	end
	return f
end

local function equal(what, got, want)
	if got ~= want then error(string.format("%s = %s, want %s", what, got, want), 2) end
end
local function near(what, got, want, by)
	if math.abs(got - want) > by then error(string.format("%s = %s, want %s ± %s", what, got, want, by), 2) end
end

-- run lets senders with endless bodies ask when they are told to, from one time to another,
-- and returns what each has sent. Each sender is {clock, state}; len is what one has at a time.
local function run(f, senders, from, to, len)
	local sent = {}
	for i = 1, #senders do sent[i] = 0 senders[i].at = senders[i].at or from end
	while true do
		local i = 1
		for j = 2, #senders do if senders[j].at < senders[i].at then i = j end end
		local s, t = senders[i], senders[i].at
		if t >= to then return sent end
		local n, ms = Clock.take(s.clock, s.state, len, t % WRAP, f)
		sent[i] = sent[i] + n
		s.at = t + (ms or 0.2)
	end
end
local function sender(clock, rest) return { clock = clock, state = { left = 0, rest = rest } } end
local function sum(t) local n = 0 for _, v in ipairs(t) do n = n + v end return n end

local tests = {}

-- However many senders and threads there are, and whatever they have at a time, the total is
-- the rate's, and each has the same part of it.
function tests.total_and_fairness()
	for _, rate in ipairs({ 64, 1000, 65536, 1048576, 104857600 }) do
		for _, n in ipairs({ 1, 2, 8, 64 }) do
			for _, len in ipairs({ 1000, 130000 }) do
				local f, threads, senders = counters(1000), { Clock.new(0, rate), Clock.new(0, rate) }, {}
				for i = 1, n do senders[i] = sender(threads[i % 2 + 1]) end
				-- ms for four turns of all
				local turn = 4000 * math.max(0.5, n * math.max(0.004, math.min(1448 / rate, 0.25)))
				local sent = run(f, senders, 1000, 1000 + turn, len)
				local what = string.format("rate %d, %d senders, %d bytes: ", rate, n, len)
				-- Asking every 0.2 ms, senders of little have less than a high rate.
				if rate < n * len * 4000 then
					near(what .. "total", sum(sent) / (rate * turn / 1000), 1, 0.03)
					for i = 1, n do near(what .. "sender " .. i, sent[i] * n / sum(sent), 1, 0.4) end
				end
			end
		end
	end
end

function tests.directions_do_not_share_counters()
	local f = counters(1000)
	run(f, { sender(Clock.new(0, 1000)) }, 1000, 2000, 100)
	equal("uploads sold", f.gpc[2], 0)
	run(f, { sender(Clock.new(1, 1000)) }, 1000, 2000, 100)
	if f.gpc[2] == 0 then error("no uploads sold") end
end

-- Time and counters wrap without a trace.
function tests.wrap()
	for _, start in ipairs({ WRAP - 500, 0, 1000 }) do
		local f, c = counters(start), Clock.new(0, 1000000)
		f.gpc[0] = WRAP - 50
		f.gpt[4] = (start + 200) % WRAP -- 50 tickets of 4 ms later: the next one is due at start
		equal("rebase", Clock.rebase(c, start, f), nil)
		near("total", sum(run(f, { sender(c), sender(c) }, start, start + 2000, 5000)), 2000000, 20000)
	end
end

function tests.rebase()
	for _, row in ipairs({
		{ "a new entry", 0, 0, 3000000000, 3000000000 },
		{ "a new entry, early", 0, 0, 1000, 1000 },
		{ "a new entry, just before the wrap", 0, 0, WRAP - 1000, WRAP - 1000 },
		{ "tickets sold for later", 1000, 25, 1000, nil },
		{ "now", 1000, 0, 1000, nil },
		{ "a little late", 1000, 0, 1096, nil },
		{ "idle", 1000, 0, 1097, 1097 },
		{ "idle, with tickets sold", 1000, 10, 2000, 1960 },
		{ "idle across the wrap", WRAP - 1000, 0, 500, 500 },
		{ "for more than a day", 1000 + 90000000, 0, 1000, 1000 },
	}) do
		local f = counters(row[2])
		f.gpc[0] = row[3]
		equal(row[1], Clock.rebase(Clock.new(0, 1000), row[4], f), row[5])
	end
end

-- A user who does not use the share has no more than LATE + SKIP of it afterwards.
function tests.burst_after_idleness()
	local f, c = counters(0), Clock.new(0, 1000000)
	local s = sender(c)
	for t = 1, 5000, 10 do Clock.take(c, s.state, 100, t, f) end
	s.at = 5000
	local sent = sum(run(f, { s }, 5000, 6000, 50000))
	if sent > 1.17 * 1000000 then error("a second's bytes = " .. sent) end
end

function tests.rate_changes_at_once()
	local f, c = counters(0), Clock.new(0, 10000000)
	local s = { sender(c), sender(c), sender(c) }
	run(f, s, 0, 1000, 100000)
	c.rate = 1000000
	near("after the change", sum(run(f, s, 1000, 2000, 100000)), 1000000, 150000)
end

-- What is left of a ticket when a body ends is another's.
function tests.nothing_is_lost_when_bodies_end()
	local rate, f, total, t = 10000000, counters(0), 0, 0
	local c = Clock.new(0, rate)
	while t < 2000 do
		local state, left = { left = 0, rest = 50000 }, 50000
		while left > 0 do
			local n, ms = Clock.take(c, state, left, t, f)
			left, total, t = left - n, total + n, t + (ms or 0)
		end
	end
	near("total", total, rate * 2, rate * 0.03)
end

-- Many small bodies have the whole share too, though some end by what others left.
function tests.nothing_is_lost_when_small_bodies_end()
	for _, row in ipairs({ { 1048576, 500, 16 }, { 1048576, 1024, 64 }, { 10485760, 4096, 64 }, { 65536, 500, 16 } }) do
		local rate, size, n = table.unpack(row)
		local f, c, total, conns = counters(1000), Clock.new(0, rate), 0, {}
		for i = 1, n do conns[i] = { at = 1000 + i / 100 } end
		while true do
			local q = conns[1]
			for i = 2, n do if conns[i].at < q.at then q = conns[i] end end
			if q.at >= 3000 then break end
			if not q.state and Clock.pass(c, size) then
				total, q.at = total + size, q.at + 0.3
			else
				q.state = q.state or { left = 0, rest = size, small = true }
				local sent, ms = Clock.take(c, q.state, q.state.rest, q.at, f)
				total = total + sent
				if not ms then q.state = nil end
				q.at = q.at + (ms or 0.3)
			end
		end
		near(string.format("rate %d, %d of %d bytes: total", rate, n, size), total / (rate * 2), 1, 0.1)
	end
end

-- Senders that no longer ask, as their clients are slow or gone, lose their tickets to those
-- that do.
function tests.senders_that_leave()
	for _, n in ipairs({ 1, 3, 7, 11 }) do
		local rate, f = 1000000, counters(1000)
		local c = Clock.new(0, rate)
		local stays, total = sender(c), 0
		for t = 1000, 2950, 50 do
			for _ = 1, n do total = total + Clock.take(c, { left = 0 }, 100000, t, f) end
			total = total + sum(run(f, { stays }, t, t + 50, 100000))
		end
		near(n .. " leave each 50 ms: total", total / (2 * rate), 1, 0.06)
		if c.last - c.first > 2 * n + 10 then error((c.last - c.first) .. " are waited for") end
	end
end

-- A sender that comes back late has lost its ticket, but not more.
function tests.a_slow_sender_returns()
	local f, c = counters(1000), Clock.new(0, 1000000)
	local slow, stays = sender(c), sender(c)
	run(f, { slow, stays }, 1000, 1100, 100000)
	run(f, { stays }, 1100, 2000, 100000)
	stays.at, slow.at = 2000, 2000
	local sent = run(f, { slow, stays }, 2000, 3000, 100000)
	near("total", sum(sent), 1000000, 30000)
	near("the slow one's", sent[1], 500000, 30000)
end

-- The base may be set, and the skips be made, for the same idleness at the same time.
function tests.rebase_while_another_thread_skips()
	local f, c = counters(0), Clock.new(0, 1000000)
	local base = Clock.rebase(c, 11000, { sc_get_gpt = function() return 1000 end, sc_get_gpc = function() return 0 end })
	f.gpt[4] = 1000
	local inc = f.sc_inc_gpc
	function f:sc_inc_gpc(i)
		local n = inc(self, i)
		if i == c.skipped and n == 3 then self.gpt[4] = base end
		return n
	end
	local s = { left = 0 }
	Clock.take(c, s, 100000, 11000, f)
	local ahead = s.start - 11000
	if ahead > 300 then error("the next ticket is " .. ahead .. " ms from now") end
end

function tests.pass()
	local f, c = counters(0), Clock.new(0, 1000000)
	equal("without credit", Clock.pass(c, 1), false)
	equal("the first body", Clock.take(c, { left = 0, rest = 1000 }, 1000, 0, f), 1000)
	equal("credit", c.credit, 3000)
	equal("as much as there is", Clock.pass(c, 3000), true)
	equal("more", Clock.pass(c, 1), false)
	c.credit = 1e9
	equal("large", Clock.pass(c, 65537), false)
end

-- Small bodies go first, up to QUICK of the rate.
function tests.quick()
	local f, c = counters(0), Clock.new(0, 1000000)
	local large = {}
	for i = 1, 32 do large[i] = sender(c) end
	run(f, large, 0, 1000, 100000)
	local n, ms = Clock.take(c, { left = 0, rest = 1000, small = true }, 1000, 1000, f)
	equal("small", n, 1000)
	equal("wait", ms, nil)
	local passed = 0
	for _ = 1, 100 do
		if Clock.take(c, { left = 0, rest = 4000, small = true }, 4000, 1000, f) == 4000 then passed = passed + 1 end
	end
	if passed == 0 or passed > 20 then error(passed .. " of 100 small bodies pass at once") end
	equal("small is", Clock.is_small(c, 20000), true)
	equal("small is not", Clock.is_small(c, 20001), false)
end

for name, test in pairs(tests) do
	local ok, err = pcall(test)
	if not ok then error(name .. ": " .. tostring(err), 0) end
end
print("clock: all passed")
