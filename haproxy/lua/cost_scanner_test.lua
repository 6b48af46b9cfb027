-- Tests of cost_scanner.lua and cost_queue.lua, for any Lua from 5.3 on: TestCostScripts runs them in HAProxy. Documents of
-- TestCostScannerReadsAsGo come in a module cost_documents; then these alone are read.
local Scanner = require("cost_scanner")
local Queue = require("cost_queue")

local function equal(what, got, want)
	if got ~= want then error(string.format("%s = %s, want %s", what, got, want), 2) end
end

-- read feeds pieces to a new reader and returns the last number that it found.
local function read(kind, path, pieces)
	local reader, last = kind.new(path), nil
	for _, piece in ipairs(pieces) do last = reader:feed(piece) or last end
	return last
end

-- pieces splits a text behind these positions.
local function pieces(text, ends)
	local list, from = {}, 1
	for _, at in ipairs(ends) do
		list[#list + 1] = text:sub(from, at)
		from = at + 1
	end
	list[#list + 1] = text:sub(from)
	return list
end

-- any_split has a text read as a whole, byte by byte, in two pieces at each place, and in random pieces.
local function any_split(what, kind, path, text, want)
	what = what .. " of " .. text:sub(1, 300)
	equal("whole " .. what, read(kind, path, { text }), want)
	local every = {}
	for i = 1, #text - 1 do every[i] = i end
	equal("byte by byte " .. what, read(kind, path, pieces(text, every)), want)
	for i = 0, #text, math.max(1, #text // 100) do equal("split at " .. i .. " " .. what, read(kind, path, pieces(text, { i })), want) end
	for n = 1, 8 do
		local ends, at = {}, 0
		repeat
			at = at + math.random(0, 2 + #text // n)
			if at < #text then ends[#ends + 1] = at end
		until at >= #text
		equal("split at random " .. n .. " " .. what, read(kind, path, pieces(text, ends)), want)
	end
end

local usage = { "usage", "total_tokens" }
local tests = {}

function tests.documents()
	for _, row in ipairs({
		{ '{"usage":{"total_tokens":21}}', 21 },
		{ ' {\n "usage" : {\t"total_tokens" :\r\n 21 }\n}\n', 21 },
		{ '{"id":"x","choices":[{"m":{"content":"a {\\"usage\\":{\\"total_tokens\\":1}} b"}}],"usage":{"prompt_tokens":9,"total_tokens":21,"d":{"total_tokens":3}}}', 21 },
		{ '{"usage":null,"x":{"usage":{"total_tokens":5}}}', nil },
		{ '[{"usage":{"total_tokens":5}}]', nil },
		{ '{"usage":[{"total_tokens":5}]}', nil },
		{ '{"usage":{"total_tokens":{"total_tokens":5}}}', nil },
		{ '{"usage":{"total_tokens":"5"}}', nil },
		{ '{"usage":{"total_tokens":true}}', nil },
		{ '{"total_tokens":5,"a":{"total_tokens":6}}', nil },
		{ '{"usage":"total_tokens","x":5}', nil },
		{ '{"usage":{"total_tokens":0}}', 0 },
		{ '{"usage":{"total_tokens":-0}}', 0 },
		{ '{"usage":{"total_tokens":21.0}}', 21 },
		{ '{"usage":{"total_tokens":2.1e1}}', 21 },
		{ '{"usage":{"total_tokens":21.5}}', nil },
		{ '{"usage":{"total_tokens":-1}}', nil },
		{ '{"usage":{"total_tokens":1e400}}', nil },
		{ '{"usage":{"total_tokens":1000000000000}}', 1000000000000 },
		{ '{"usage":{"total_tokens":1000000000001}}', nil },
		{ '{"usage":{"total_tokens":00000000000000000000000000000021}}', 21 }, -- 32 characters
		{ '{"usage":{"total_tokens":000000000000000000000000000000021}}', nil },
		-- The last number counts, also of several documents.
		{ '{"usage":{"total_tokens":1,"total_tokens":2}}', 2 },
		{ '{"usage":{"total_tokens":1}}\n{"usage":{"total_tokens":2}}\n{"usage":null}\n', 2 },
		{ '{"usage":{"total_tokens":1}} "usage {" [{"usage":3}] {"usage":{"total_tokens":2}}', 2 },
		-- Backslashes and quotes in texts.
		{ '{"a":"\\\\","usage":{"total_tokens":21}}', 21 },
		{ '{"a":"\\\\\\"","usage":{"total_tokens":21}}', 21 },
		{ '{"a\\"b\\\\":{"\\\\":"\\""},"usage":{"x":"\\\\\\\\","total_tokens":21}}', 21 },
		{ '{"a":["}","]","{\\"",[["["]]],"usage":{"total_tokens":21}}', 21 },
		{ '{"usage\\u0021":{"total_tokens":1},"usag":{"total_tokens":2},"usages":{"total_tokens":3}}', nil },
		{ '{"":{"":""},"usage":{"":1,"total_tokens":21}}', 21 },
		-- What ends in the middle.
		{ '{"usage":{"total_tokens":2', nil },
		{ '{"usage":{"total_tokens":2,', 2 },
		{ '{"usage":{"total_tokens', nil },
		{ '', nil },
		-- What is no JSON.
		{ '}}}]]]{"usage":{"total_tokens":21}}', 21 },
		{ '<html>"</html>', nil },
	}) do
		any_split("document", Scanner, usage, row[1], row[2])
	end
	any_split("one key", Scanner, { "cost" }, '{"a":{"cost":1},"cost":7,"b":[{"cost":2}]}', 7)
	any_split("three keys", Scanner, { "a", "b", "a" }, '{"b":1,"a":{"a":2,"b":{"b":3,"a":4},"c":{"a":5}}}', 4)
	any_split("a key in itself", Scanner, { "a", "a" }, '{"a":{"a":{"a":1},"b":2}}', nil)
end

function tests.events()
	for _, row in ipairs({
		{ 'data: {"usage":{"total_tokens":21}}\n\n', 21 },
		{ 'data:{"usage":{"total_tokens":21}}\r\n\r\n', 21 },
		{ 'data: {"x":1,"usage":null}\n\ndata: {"usage":{"total_tokens":21}}\n\ndata: [DONE]\n\n', 21 },
		{ 'event: a\nid: {"usage":{"total_tokens":1}}\n: {"usage":{"total_tokens":2}}\ndata: {}\n\n', nil },
		{ 'data: {"usage":{"total_tokens":1}}\n\ndata: {"usage":{"total_tokens":2}}\n\n', 2 },
		-- Each line is a document, whatever is not closed in the one before.
		{ 'data: {"usage":{"a":"\ndata: {"usage":{"total_tokens":2}}\n\n', 2 },
		{ 'data: {"usage":{"total_tokens":1\ndata: {"usage":{"total_tokens":2}}\n\n', 2 },
		{ 'data\ndat\ndatax: {"usage":{"total_tokens":1}}\nxdata: {"usage":{"total_tokens":1}}\n data: {"usage":{"total_tokens":1}}\n', nil },
		-- A number whose line has not ended is one, once it has.
		{ 'data: {"usage":{"total_tokens":21}', 21 },
		{ 'data: {"usage":{"total_tokens":21', nil },
		{ '\n\n\n', nil },
	}) do
		any_split("events", Scanner.Events, usage, row[1], row[2])
	end
end

-- Either is told by its first byte.
function tests.bodies()
	any_split("a document", Scanner.Body, usage, ' \r\n{"usage":{"total_tokens":21}}', 21)
	any_split("a document behind a mark of the byte order", Scanner.Body, usage, '\xEF\xBB\xBF{"usage":{"total_tokens":21}}', 21)
	any_split("an array", Scanner.Body, usage, '[\ndata: {"usage":{"total_tokens":21}}\n]', nil)
	any_split("events", Scanner.Body, usage, 'data: {"usage":{"total_tokens":21}}\n\n', 21)
	any_split("events behind blank lines", Scanner.Body, usage, '\xEF\xBB\xBF\n\ndata: {"usage":{"total_tokens":21}}\n\n', 21)
	any_split("a comment", Scanner.Body, usage, ': hello\n\ndata: {"usage":{"total_tokens":21}}\n\n', 21)
	any_split("blanks", Scanner.Body, usage, ' \n\t', nil)
	-- A whole body has the same number.
	for text, want in pairs({
		['{"usage":{"total_tokens":21}}'] = 21,
		['{"usage":{"total_tokens" : 21 , "x":1}, "total_tokens":5}'] = 21,
		['{"a":{"total_tokens":5},"usage":{"total_tokens":21}} {"total_tokens"'] = 21,
		['{"usage":{"a":5}}'] = false,
		['data: {"usage":{"total_tokens":21}}\n: {"total_tokens":5}'] = 21,
		['data: {"usage":{"total_tokens":21}}'] = 21,
		['{"usage":{"total_tokens":21'] = false,
	}) do
		equal(text, Scanner.Body.new(usage):feed(text, true) or false, want)
	end
end

-- Nothing is kept of a body but the beginning of a key or a number.
function tests.memory()
	for _, text in ipairs({
		'{"usage":{"total_tokens":' .. ("1"):rep(1000000),
		'{"usage":{"' .. ("k"):rep(1000000),
		'{"usage":{"a":"' .. ("\\\\x"):rep(300000),
		'{"usage":{"a":' .. ("["):rep(1000000),
		("data"):rep(250000),
		"data: " .. ('{"a":['):rep(100000),
	}) do
		local s = Scanner.Body.new(usage)
		for i = 1, #text, 1000 do s:feed(text:sub(i, i + 999)) end
		local kept = 0
		local function count(t)
			for _, v in pairs(t) do
				if type(v) == "string" then kept = kept + #v elseif type(v) == "table" then count(v) end
			end
		end
		count(s)
		if kept > 200 then error(kept .. " bytes are kept of " .. text:sub(1, 30)) end
	end
end

function tests.queue()
	local q = Queue.new(3)
	equal("empty", q:empty(), true)
	equal("holds none", q:holds(nil), false)
	local a, b = q:append("a"), q:append("b")
	equal("empty", q:empty(), false)
	equal("holds a", q:holds(a), true)
	q[a] = "another a"
	local text, n = q:take(1)
	equal("text", text, "another a\n")
	equal("lines", n, 1)
	equal("holds a", q:holds(a), false)
	equal("holds b", q:holds(b), true)
	equal("text", (q:take(10)), "b\n")
	equal("empty", q:empty(), true)
	for i = 1, 4 do b = q:append("line " .. i) end
	equal("dropped", q.dropped, 1)
	equal("holds what was dropped", q:holds(b - 3), false)
	q.unreadable = 4
	text, n = q:take(2)
	equal("text", text, "line 2\nline 3\ndropped 1\nunreadable 4\n")
	equal("lines", n, 2)
	equal("text", (q:take(10)), "line 4\n")
	equal("empty", q:empty(), true)
	text, n = q:take(10)
	equal("text", text, "")
	equal("lines", n, 0)
	q.dropped = 1
	equal("empty", q:empty(), false)
	equal("text", (q:take(10)), "dropped 1\n")
end

local there, documents = pcall(require, "cost_documents")
if there then
	tests = {}
	function tests.documents_as_go_reads_them()
		for _, d in ipairs(documents) do
			any_split("document", Scanner, d.path, d.text, d.want)
			any_split("event", Scanner.Events, d.path, "data: " .. d.text:gsub("[\r\n]", " ") .. "\n\n", d.want)
			local first = d.text:match("%S")
			if first == "{" or first == "[" then equal("all of " .. d.text, Scanner.Body.new(d.path):feed(d.text, true), d.want) end
		end
	end
end

for name, test in pairs(tests) do
	local good, message = xpcall(test, debug.traceback)
	if not good then error(name .. ": " .. message, 0) end
end
print("costs: all passed")
