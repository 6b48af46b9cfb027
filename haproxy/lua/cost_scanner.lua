-- Finds a number in JSON as it comes, in pieces of any size: the pure part of costs.lua. It keeps where it is,
-- and no more of a body than the beginning of a key or a number that the next piece goes on with.
--
-- It follows a path of keys through nested objects, and looks at every key in its place, so that the same key
-- elsewhere, or in a text, is not taken for it. Keys are compared as they are written: one with
-- escapes (\u0074) is none of the path's. A path does not lead through arrays. It reads what servers
-- write, and complains of nothing: where a document is no JSON it may find a number or none.
--
-- Lua's patterns take 40 ns for a byte, and a plain find goes at the speed of memchr. So it goes from quote to quote and
-- from brace to brace by plain finds.

local Scanner = {}
Scanner.__index = Scanner

-- The largest cost of a request, pkg/limits.MaxCost.
Scanner.MOST = 1000000000000
-- No number of more characters counts.
local LONGEST_NUMBER = 32
-- Behind the end of every piece.
local FAR = math.maxinteger

local byte, find, sub = string.byte, string.find, string.sub
local tonumber, tointeger = tonumber, math.tointeger

-- Where it is.
local BETWEEN = 0 -- before a text, an object, an array or the end of one; everything else is passed
local TEXT = 1 -- in a text that began in an earlier piece
local COLON = 2 -- behind a text that is the path's next key, if a colon follows
local VALUE = 3 -- behind that colon
local NUMBER = 4 -- in the number that is looked for

-- new looks for the number at a path of keys, one or more.
function Scanner.new(path)
	local s = setmetatable({ path = path }, Scanner)
	s:reset()
	return s
end

-- reset forgets a document that has not ended.
function Scanner:reset()
	self.state = BETWEEN
	self.depth = 0 -- how many objects and arrays are open,
	self.on = 0 -- and how many of the outer ones are objects that the path leads through
	self.part = nil -- of the text or the number that is not complete; of a text false, if it is too long for a key
	self.escaped = false -- the last byte of a text was a backslash that escapes the next one
end

-- whole is the number if it may be a cost: 21, and 21.0 as well. There may be none.
function Scanner.whole(text)
	local n = text and tointeger(tonumber(text))
	if n and n >= 0 and n <= Scanner.MOST then return n end
	return nil
end
local whole = Scanner.whole

-- is_escaped is whether a byte is, of a text that goes on at from.
local function is_escaped(s, from, at)
	local b = at - 1
	while b >= from and byte(s, b) == 92 do b = b - 1 end
	return (at - b) % 2 == 0
end

-- text_end is where the quote is that ends a text which goes on at from, nil: not in s. Then come the two bytes behind it.
local function text_end(s, from)
	local quote = find(s, '"', from, true)
	while quote do
		local before, _, next1, next2 = byte(s, quote - 1, quote + 2)
		-- In front of the first byte there is none, and byte() begins with the quote itself.
		if quote == from or before ~= 92 or not is_escaped(s, from, quote) then return quote, next1, next2 end
		quote = find(s, '"', quote + 1, true)
	end
	return nil
end

-- feed reads the next piece, and returns the last number at the path that has ended in it, or nil.
function Scanner:feed(s)
	local path, state, depth, on = self.path, self.state, self.depth, self.on
	local last, key, length, pos, found = #path, path[on], #s, 1, nil
	-- Where the next ones are from pos on.
	local quote, open, close, left, right = 0, 0, 0, 0, 0
	while pos <= length do
		if state == BETWEEN then
			if quote < pos then quote = find(s, '"', pos, true) or FAR end
			if open < pos then open = find(s, "{", pos, true) or FAR end
			if close < pos then close = find(s, "}", pos, true) or FAR end
			if left < pos then left = find(s, "[", pos, true) or FAR end
			if right < pos then right = find(s, "]", pos, true) or FAR end
			local opened, closed = open < left and open or left, close < right and close or right
			if quote < opened and quote < closed then
				local stop, next1, next2 = text_end(s, quote + 1)
				if not stop then
					pos = quote + 1
					self.escaped, self.part = is_escaped(s, pos, length + 1), depth == on and on > 0 and length - quote <= #key and sub(s, pos)
					state = TEXT
					break
				end
				if depth == on and on > 0 and stop - quote - 1 == #key and sub(s, quote + 1, stop - 1) == key then state = COLON end
				pos = stop + 1
				-- Mostly another text begins there.
				if next2 == 34 and (next1 == 58 or next1 == 44) then quote = stop + 2 end
			elseif opened < closed then
				depth, pos = depth + 1, opened + 1
				if depth == 1 and opened == open then on, key = 1, path[1] end
			elseif closed < FAR then
				pos = closed + 1
				if depth > 0 then depth = depth - 1 end
				if on > depth then on, key = depth, path[depth] end
			else
				break
			end
		elseif state == TEXT then
			local from = pos
			if self.escaped then from, self.escaped = pos + 1, false end
			local stop = text_end(s, from)
			local part = self.part
			if part then
				part = part .. sub(s, pos, stop and stop - 1 or pos + #key)
				self.part = #part <= #key and part
			end
			if not stop then
				self.escaped = is_escaped(s, from, length + 1)
				break
			end
			state = self.part == key and on > 0 and COLON or BETWEEN
			pos, self.part = stop + 1, nil
		elseif state == NUMBER then
			local at = find(s, "[^0-9.eE+-]", pos)
			local part = self.part .. sub(s, pos, at and at - 1 or pos + LONGEST_NUMBER)
			if not at then
				self.part = sub(part, 1, LONGEST_NUMBER + 1)
				break
			end
			if #part <= LONGEST_NUMBER then found = whole(part) or found end
			pos, state, self.part = at, BETWEEN, nil
		else
			local at = find(s, "[^ \t\r\n]", pos)
			if not at then break end
			local c = byte(s, at)
			pos = at
			if state == COLON and c == 58 then
				pos, state = at + 1, VALUE
			elseif state == VALUE and c == 123 and on < last then
				depth, on, key, pos, state = depth + 1, on + 1, path[on + 1], at + 1, BETWEEN
			elseif state == VALUE and on == last and (c == 45 or c >= 48 and c <= 57) then
				state, self.part = NUMBER, ""
			else
				state = BETWEEN
			end
		end
	end
	self.state, self.depth, self.on = state, depth, on
	return found
end

-- Events reads server-sent events (text/event-stream): each line "data:" is a document.
local Events = {}
Events.__index = Events
Scanner.Events = Events

local DATA, DATA_LENGTH = "data:", 5
-- What of a line is read: its first bytes, nothing more of it, or a document.
local BEGIN, REST, DOCUMENT = 0, 1, 2

function Events.new(path)
	-- A line without the last key has no number. It is the only one that has to be looked at byte by byte.
	return setmetatable({ scanner = Scanner.new(path), key = '"' .. path[#path] .. '"', state = BEGIN, part = "" }, Events)
end

-- feed is as a Scanner's.
function Events:feed(s)
	local scanner, pos, length, found = self.scanner, 1, #s, nil
	local key_at = find(s, self.key, 1, true) or length + 1
	while pos <= length do
		if self.state == BEGIN and self.part == "" and pos > key_at then
			key_at = find(s, self.key, pos, true) or length + 1
		end
		local at = find(s, "\n", pos, true)
		if self.state == BEGIN and self.part == "" and at and at < key_at then -- a whole line without the key
			pos = at + 1
		else
			local stop = at and at - 1 or length
			if self.state == BEGIN then
				local from = pos
				pos = pos + DATA_LENGTH - #self.part
				self.part = self.part .. sub(s, from, pos - 1 < stop and pos - 1 or stop)
				if self.part == DATA then
					self.state = DOCUMENT
				elseif #self.part == DATA_LENGTH then
					self.state = REST
				end
			end
			if self.state == DOCUMENT then
				-- A carriage return behind the document is a blank to it.
				found = scanner:feed(sub(s, pos, stop)) or found
			end
			if not at then break end
			if self.state == DOCUMENT then scanner:reset() end
			pos, self.state, self.part = at + 1, BEGIN, ""
		end
	end
	return found
end

-- Body reads either: an object is a document, or one of several on lines of their own, and everything else events. It
-- goes by the first byte that is no blank.
local Body = {}
Body.__index = Body
Scanner.Body = Body

function Body.new(path) return setmetatable({ path = path }, Body) end

-- through is s up to the number behind the last place of a key, or nil if it is nowhere.
local function through(s, key)
	local at, next_at = nil, find(s, key, 1, true)
	while next_at do at, next_at = next_at, find(s, key, next_at + #key, true) end
	return at and sub(s, 1, find(s, "[,}]", at + #key))
end

-- feed is as a Scanner's. With all, s is the whole body: then what is behind the number needs no look.
function Body:feed(s, all)
	local reader = self.reader
	if not reader then
		local first = find(s, "[^ \t\r\n\xEF\xBB\xBF]")
		if not first then return nil end
		local c = byte(s, first)
		local document = c == 123 or c == 91
		reader = document and Scanner.new(self.path) or Events.new(self.path)
		self.reader = reader
		-- Blank lines say nothing, and a mark of the byte order would hide the first field.
		if first > 1 then s = sub(s, first) end
		if all and document then
			s = through(s, '"' .. self.path[#self.path] .. '"')
			if not s then return nil end
		end
	end
	return reader:feed(s)
end

return Scanner
