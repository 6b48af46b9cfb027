-- What one thread of HAProxy has to tell the agent of costs: the pure part of costs.lua.
--
-- Its lines are corrections above all: "40 1000@1764003600 tokens alice" is what a request cost, what was charged for it
-- in which second, the unit, and the user. The queue has a bound. When there are more, the oldest is dropped and
-- counted: what it would have corrected stays charged.

local Queue = {}
Queue.__index = Queue

local concat, min = table.concat, math.min

-- new is a queue of so many lines at most.
function Queue.new(most)
	return setmetatable({ most = most, first = 1, last = 0, dropped = 0, unreadable = 0 }, Queue)
end

-- append adds a line without its end, and returns its number.
function Queue:append(line)
	local last = self.last + 1
	if last - self.first >= self.most then
		self[self.first], self.first, self.dropped = nil, self.first + 1, self.dropped + 1
	end
	self[last], self.last = line, last
	return last
end

-- holds is whether the line of a number is still to be told.
function Queue:holds(number)
	return number ~= nil and number >= self.first
end

-- empty is whether there is nothing to tell.
function Queue:empty()
	return self.last < self.first and self.dropped == 0 and self.unreadable == 0
end

-- take removes so many lines at most, and returns them as the agent reads them, and how many they are.
function Queue:take(most)
	local first, last = self.first, min(self.first + most - 1, self.last)
	local text, taken = concat(self, "\n", first, last), last - first + 1
	for i = first, last do self[i] = nil end
	self.first = last + 1
	if taken > 0 then text = text .. "\n" end
	for _, count in ipairs({ "dropped", "unreadable" }) do
		if self[count] > 0 then
			text, self[count] = text .. count .. " " .. self[count] .. "\n", 0
		end
	end
	return text, taken
end

return Queue
