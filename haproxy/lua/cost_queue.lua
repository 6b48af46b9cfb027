-- What one thread of HAProxy has to tell the agent of costs: the pure part of costs.lua.
--
-- A correction is what a request cost above (or below, negative) what was charged for it. The queue has a bound. When
-- there are more, the oldest is dropped and counted: what it would have corrected stays charged.

local Queue = {}
Queue.__index = Queue

local format, concat = string.format, table.concat

-- new is a queue of so many corrections at most.
function Queue.new(most)
	return setmetatable({ most = most, first = 1, last = 0, dropped = 0, unreadable = 0 }, Queue)
end

-- add corrects what a user was charged of a unit in a second. It returns the entry; given back with the next
-- correction of the same request, that one becomes part of it while it has not been taken.
function Queue:add(second, unit, change, user, entry)
	if entry and entry.at and entry.at >= self.first then
		entry.change = entry.change + change
		return entry
	end
	entry = { at = self.last + 1, second = second, unit = unit, change = change, user = user }
	self:append(entry)
	return entry
end

-- append adds an entry, or a line that is complete but for its end.
function Queue:append(entry)
	local last = self.last + 1
	if last - self.first >= self.most then
		self[self.first], self.first, self.dropped = nil, self.first + 1, self.dropped + 1
	end
	self[last], self.last = entry, last
end

-- empty is whether there is nothing to tell.
function Queue:empty()
	return self.last < self.first and self.dropped == 0 and self.unreadable == 0
end

-- take removes so many corrections at most, and returns them as the agent reads them, and how many they are.
function Queue:take(most)
	local lines, n = {}, 0
	while n < most and self.first <= self.last do
		local e = self[self.first]
		self[self.first], self.first = nil, self.first + 1
		if type(e) == "table" then e = e.change ~= 0 and format("%s %s %d %s", e.second, e.unit, e.change, e.user) end
		if e then
			n = n + 1
			lines[n] = e
		end
	end
	local corrections = n
	for _, count in ipairs({ "dropped", "unreadable" }) do
		if self[count] > 0 then
			n = n + 1
			lines[n], self[count] = format("%s %d", count, self[count]), 0
		end
	end
	if n > 0 then lines[n + 1] = "" end -- the last line has an end, too
	return concat(lines, "\n"), corrections
end

return Queue
