-- Reads what answers say their requests cost, and tells the agent by how much that differs from what was charged.
-- haproxy.cfg has it loaded and says what is to be read, in the files for a limit file with costs; cost_scanner.lua reads
-- and cost_queue.lua keeps what is to be told.
--
-- How much a request was charged of which unit, and in which second, is in txn.sluice.charged_0 and so on, as "1000@1764003600",
-- which the agent's answer has set. A cost in a header, or in a small document that HAProxy reads itself, takes one call
-- of a converter. One in any other body takes a filter, which has no callback but the payload's, and that only for answers
-- that an action has armed it for. It holds nothing back: it looks at what goes by.
--
-- Corrections are sent at most once. What may be lost is what was on its way to an agent that ended. It stays charged as
-- estimated; a refund that came twice would let a user pass their limit.

local Scanner = require("cost_scanner")
local Queue = require("cost_queue")

-- Where the agent listens.
local ADDRESS = os.getenv("SLUICE_COSTS") or "unix@/run/sluice/costs.sock"
-- How many corrections wait for the agent in each thread: some 3 MB of Lua's memory.
local MOST = 10000
-- How many are sent at a time: they fit into one buffer of HAProxy's smallest ones, 16 KiB, whatever the keys are.
local BATCH = 64
-- How often the queue is looked at, ms: from SOON on while there is something in it, up to SELDOM.
local SOON, SELDOM = 10, 160
-- A connection that was not used for so long, ms, is closed. While it is open, a process that is to end after a reload
-- does not, and what is sent over one whose agent has ended meanwhile is lost.
local IDLE = 500
-- How long connecting may take, s; and how long it is not tried again, ms.
local PATIENCE, FIRST_PAUSE, LONGEST_PAUSE = 2, 100, 2000
-- How long a connection may be without a byte from the agent, s. The agent never says anything, and from 3.0 on HAProxy
-- ends such a connection in the middle of its use, with what is sent just then. So it is replaced long before, in s, and an
-- agent that does not read has still as long to go on.
local SILENCE, RENEWAL = 60, 30

-- Each request leaves coroutines to the collector, which by default begins again when memory has doubled. What lives
-- is so little that to wait until there is four times as much takes next to no memory.
collectgarbage("setpause", 400)

local queue = Queue.new(MOST)
local running, match, format, whole = coroutine.running, string.match, string.format, Scanner.whole

-- A converter's work: what an answer's headers say of a unit, as a line for the agent. Without a result no variable is set.
core.register_converters("sluice_settle", function(line) queue:append(line) end)

-- A converter's work: an answer whose body was to be read is compressed.
core.register_converters("sluice_unreadable", function()
	queue.unreadable = queue.unreadable + 1
	return 1
end)

-- tell_unheard tells the agent, if a request was asked about, that nobody has heard the verdict. It may have charged the request, or be
-- about to, and gives that back.
local function tell_unheard(txn)
	local question, user = txn:get_var("txn.sluice_question"), txn:get_var("txn.sluice_user")
	if question and user then queue:append("unheard " .. question .. " " .. user) end
end

-- A request that passes without a verdict has been charged nothing, of the units of these numbers.
core.register_action("sluice_unheard", { "http-req" }, function(txn, numbers)
	tell_unheard(txn)
	txn:unset_var("txn.sluice_question") -- it is told once
	for number in numbers:gmatch("%d+") do
		txn:set_var("txn.sluice.charged_" .. number, "0@" .. core.now().sec)
	end
end, 1)

-- The next question about the same request is another one.
core.register_action("sluice_ask_again", { "http-req" }, function(txn)
	tell_unheard(txn)
	-- HAProxy draws ids below 2^32.
	txn:set_var("txn.sluice_question", txn:get_var("txn.sluice_question") + (1 << 32))
	txn:unset_var("txn.sluice.err")
	txn:set_var("txn.sluice_late", 1)
end)

local Filter = { id = "sluice_costs", flags = filter.FLT_CFG_FL_HTX }
Filter.__index = Filter

-- The filter object of each stream, found by the coroutine in which HAProxy creates it and runs the stream's actions.
local filters = setmetatable({}, { __mode = "k" })

function Filter:new()
	local f = setmetatable({}, Filter)
	filters[running()] = f
	return f
end

-- A reading is what an answer's body says of a unit: told is what the agent was told last, and cost what was read last.
local Reading = {}
Reading.__index = Reading

-- How many readings have read less than was told.
local lower = 0

-- tell corrects what is charged to what was read. While the line before is still to be told, this one takes its place.
function Reading:tell()
	if self.lower then lower, self.lower = lower - 1, nil end
	if self.cost == self.told then return end
	if not queue:holds(self.line) then
		self.charged, self.line = self.told, queue:append("")
	end
	self.told = self.cost
	queue[self.line] = format("%d %d%s %s %s", self.cost, self.charged, self.second, self.unit, self.user)
end

-- note takes a cost, or nil. What is more than was charged is charged at once. What is less may become more yet, for some
-- origins say with each event of a stream what it has cost so far: it goes back when the answer ends.
function Reading:note(cost, ended)
	if cost then self.cost = cost end
	if ended or self.cost > self.told then
		self:tell()
	elseif self.cost < self.told and not self.lower then
		lower, self.lower = lower + 1, true
	end
end

-- An answer that breaks off has cost what it has said until then. HAProxy does not say when, but forgets the stream, and the
-- collector finds the reading. It comes by in the middle of anything that takes memory, so it only notes it here.
local broken = {}
function Reading:__gc()
	if self.lower then broken[#broken + 1] = self end
end

-- collect has the collector go on with its round, for few requests may come that would, and tells what it has found.
local function collect()
	for _ = 1, 10 do
		if lower == 0 or collectgarbage("step") then break end
	end
	while #broken > 0 do table.remove(broken):tell() end
end

function Filter:http_payload(txn, message)
	local body, all = message:body() or "", message:eom()
	for i = 1, #self do
		local r = self[i]
		r:note(body ~= "" and r.body:feed(body, all) or nil, all)
	end
	-- No result: all of it goes on at once.
end

core.register_filter("sluice_costs", Filter, function(f) return f end)

-- The keys of each path, which are few.
local paths = {}

-- An answer's body goes by the filter, which reads the cost of a unit there.
core.register_action("sluice_read_body", { "http-res" }, function(txn, unit, number, path)
	local f, user = filters[running()], txn:get_var("txn.sluice_user")
	local charged, second = match(txn:get_var("txn.sluice.charged_" .. number) or "", "^(%d+)(@%d+)$")
	charged = charged and whole(charged)
	if not f or not user or not charged then return end
	if #f == 0 then filter.register_data_filter(f, txn.res) end
	-- What the headers have told already is what the body corrects.
	local told = match(txn:get_var("txn.sluice_told_" .. number) or "", "^%d+$")
	local r = setmetatable({ unit = unit, user = user, second = second, told = told and whole(told) or charged }, Reading)
	r.cost = r.told
	local keys = paths[path]
	if not keys then
		keys = {}
		for key in path:gmatch("[^.]+") do keys[#keys + 1] = key end
		paths[path] = keys
	end
	r.body = Scanner.Body.new(keys)
	f[#f + 1] = r
end, 3)

-- The connection to the agent, nil: none; and when it was opened, in s.
local connection, opened

local function disconnect()
	connection:close()
	connection = nil
end

-- connect returns whether there is a connection.
local function connect()
	local now = core.now().sec
	-- A clock that was set back must not keep it any longer.
	if connection and (now < opened or now - opened >= RENEWAL) then disconnect() end
	if connection then return true end
	connection, opened = core.tcp(), now
	connection:settimeout(PATIENCE)
	if not connection:connect(ADDRESS) then
		disconnect()
		return false
	end
	connection:settimeout(SILENCE)
	return true
end

-- send tells the agent the next corrections, and returns whether there is an agent.
local function send()
	if not connect() then return false end
	local text, corrections = queue:take(BATCH)
	if text == "" then return true end
	if connection:send(text) ~= #text then
		queue.dropped = queue.dropped + corrections
		disconnect()
		return false
	end
	return true
end

-- One for each thread, as everything here.
core.register_task(function()
	local pause, wait, idle = FIRST_PAUSE, SOON, 0
	while true do
		collect()
		if queue:empty() then
			if connection and idle >= IDLE then disconnect() end
			core.msleep(wait)
			idle, wait = idle + wait, math.min(2 * wait, SELDOM)
		else
			local sent = send()
			idle, wait = 0, SOON
			if sent then
				pause = FIRST_PAUSE
			else
				core.msleep(pause)
				pause = math.min(2 * pause, LONGEST_PAUSE)
			end
			-- What else comes meanwhile goes with the next ones.
			if sent and queue.last - queue.first + 1 < BATCH then core.msleep(SOON) end
		end
	end
end)
