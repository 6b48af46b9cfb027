-- The clock that paces one user's bytes in one direction: the pure part of
-- bandwidth.lua. It asks nobody for the time and sleeps nowhere.
--
-- A user's bytes are sold as tickets of TICKET milliseconds of the share. Tickets are
-- numbered; ticket n may be used from base + n * TICKET on. So the total is exact
-- however many transfers take part, turns are first come, first served, and when the
-- share changes, so do the bytes of every ticket not used yet.
--
-- Each thread of HAProxy has its own Lua and sees only its own streams: what all must
-- agree on is in stick-table counters, which add atomically in every HAProxy since
-- 2.5. Lua can add one to them, and only configuration rules can set a value, hence:
--   gpt(4+d)    base, ms; set when a request finds that the user has been idle
--   gpc(2d)     tickets sold
--   gpc(2d+1)   skips of SKIP ms: the time in which transfers did not use their share
-- with d 0 for down and 1 for up. They are of 32 bits, and so is time here: milliseconds
-- modulo 2^32. TICKET and SKIP are powers of 2, so counters may wrap.

local Clock = {}

Clock.TICKET = 4
Clock.SKIP = 64
-- How late a ticket may be used, ms: what a user has not used for longer is gone, which
-- bounds the burst after it.
Clock.LATE = 96
-- Skips at a time at most: about a minute, and a third of a millisecond's work.
Clock.MOST_SKIPS = 1024
-- A sender buys so many bytes at least, unless that is more than this part of a second:
-- one TCP segment.
Clock.LEAST, Clock.SLOWEST = 1448, 0.25
-- A body is small if it is no more than this, in ms of the share and in bytes. Small ones
-- pass those that wait, as long as they need less than QUICK of the share in each thread
-- and no more than AHEAD ms of tickets are sold.
Clock.SMALL, Clock.SMALL_MOST, Clock.QUICK, Clock.AHEAD = 20, 65536, 0.25, 300
-- A sender who has not used its tickets for so long, ms, loses them to others: its client
-- is slow or gone, of which nobody tells.
Clock.GRACE = 16
-- A sender asks again after so many ms at the latest: its share may have changed, or others
-- have lost tickets, LATE - GRACE ago at most. At the soonest it is HAProxy's resolution.
Clock.LATEST, Clock.SOONEST = 80, 1
-- The sticky counter by which the user is tracked.
Clock.counter = 0

local TICKET, SKIP, LATE, LEAST, SLOWEST = Clock.TICKET, Clock.SKIP, Clock.LATE, Clock.LEAST, Clock.SLOWEST
local SMALL, SMALL_MOST, QUICK, AHEAD = Clock.SMALL, Clock.SMALL_MOST, Clock.QUICK, Clock.AHEAD
local LATEST, SOONEST, MOST_SKIPS, GRACE = Clock.LATEST, Clock.SOONEST, Clock.MOST_SKIPS, Clock.GRACE
local WRAP, HALF, DAY = 4294967296, 2147483648, 86400000
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- since is how much later a is than b, both ms modulo 2^32; negative: earlier.
local function since(a, b)
	local d = (a - b) % WRAP
	if d >= HALF then d = d - WRAP end
	return d
end

-- new is this thread's part of a clock in direction d, for a rate of bytes per second
-- above 0.
function Clock.new(d, rate)
	return {
		rate = rate,
		base = 4 + d, -- gpt
		sold = 2 * d, -- gpc
		skipped = 2 * d + 1, -- gpc
		credit = 0, -- bytes that were bought and are left
		-- The senders that wait, and when they may use their tickets: queues by that time,
		-- from first to last.
		holders = {},
		starts = {},
		first = 1,
		last = 0,
	}
end

-- rebase is the base that lets the next ticket be used now if the user was idle, else nil.
-- f are HAProxy's sample fetches, with the user tracked.
function Clock.rebase(c, now, f)
	local base, sold, skipped = f:sc_get_gpt(c.base, Clock.counter), f:sc_get_gpc(c.sold, Clock.counter), f:sc_get_gpc(c.skipped, Clock.counter)
	-- A new entry's base is no time at all; taken for one, it is to come on the last day
	-- before time wraps.
	if base == 0 and sold == 0 and skipped == 0 then return floor(now) % WRAP end
	local next_ticket = base + sold * TICKET + skipped * SKIP
	local ahead = since(next_ticket, now)
	if ahead >= -LATE and ahead < DAY then return nil end
	return floor(base - ahead) % WRAP
end

-- buy sells the next tickets of a sender and returns when they may be used.
local function buy(c, n, now, f)
	local last
	for _ = 1, n do last = f:sc_inc_gpc(c.sold, Clock.counter) end
	local sold = (last - n) * TICKET
	local start = f:sc_get_gpt(c.base, Clock.counter) + sold + f:sc_get_gpc(c.skipped, Clock.counter) * SKIP
	-- Nobody used the time. One skip at a time: other threads may be at it as well, or
	-- set the base meanwhile, which is the same time once more.
	local skips = 0
	while skips < MOST_SKIPS and since(now, start) > LATE do
		local skipped = f:sc_inc_gpc(c.skipped, Clock.counter)
		start = f:sc_get_gpt(c.base, Clock.counter) + sold + skipped * SKIP
		skips = skips + 1
	end
	return start
end

-- wait_for queues a sender that has just bought tickets for later.
local function wait_for(c, s)
	c.last = c.last + 1
	c.holders[c.last], c.starts[c.last] = s, s.start
end

-- lost takes tickets that are due from a sender who does not use them, and returns how many,
-- or nil: its body has ended by what others left, or it does not ask.
local function lost(c, now)
	while c.first <= c.last do
		local i = c.first
		local s, start = c.holders[i], c.starts[i]
		local held, late = s.start == start, since(now, start)
		if held and (late < 0 or late < GRACE and not (s.rest and s.rest < 1)) then return nil end
		c.holders[i], c.starts[i], c.first = nil, nil, i + 1
		if held then
			s.start = nil
			if late <= LATE then return s.tickets end
		end
	end
	return nil
end

-- quick reports whether a small body may use its n tickets wait ms before their time.
local function quick(c, n, wait, now)
	if wait > AHEAD then return false end
	local at = c.quick_at -- when small bodies have had their part of the share
	if not at or since(now, at) > LATE then at = now - LATE end
	if since(at, now) > 0 then return false end
	c.quick_at = at + n * TICKET / QUICK
	return true
end

-- take says how many of the len bytes, 1 or more, that a sender has may be sent now, and
-- if those are not all, after how many ms the sender has to ask again. s is the sender's
-- table: left (bytes that it may still send, 0 at first), rest (bytes of its body still to
-- come, nil: not known), small (nil, or true: it may pass those that wait).
function Clock.take(c, s, len, now, f)
	local sent = 0
	while true do
		if s.left < 1 and c.credit >= 1 then
			local n = min(c.credit, len - sent)
			c.credit = c.credit - n
			s.left = s.left + n
		end
		local n = floor(min(s.left, len - sent))
		sent, s.left = sent + n, s.left - n
		if s.rest then s.rest = s.rest - n end
		if sent >= len then return len end

		local rate = c.rate
		local tickets = lost(c, now)
		if not tickets then
			local new = not s.start
			if new then
				local bytes = rate * TICKET / 1000
				s.tickets = 1
				if bytes < LEAST then s.tickets = ceil(min(LEAST, rate * SLOWEST) / bytes) end
				s.start = buy(c, s.tickets, now, f)
			end
			local wait = since(s.start, now)
			if wait > 0 and not (s.small and quick(c, s.tickets, wait, now)) then
				if new then wait_for(c, s) end
				return sent, max(SOONEST, min(LATEST, ceil(wait)))
			end
			tickets, s.start = s.tickets, nil
		end
		local got = rate * tickets * TICKET / 1000
		-- What the body will not need is for others.
		local over = s.rest and s.left + got - s.rest or 0
		if over > 0 then
			got = got - over
			c.credit = c.credit + over
		end
		s.left = s.left + got
	end
end

-- is_small reports whether a body of n bytes is one.
function Clock.is_small(c, n)
	return n <= SMALL_MOST and n <= c.rate * SMALL / 1000
end

-- pass reports whether a small body of n bytes may be sent as a whole, and counts it if so.
-- It is what this thread has bought already, so that HAProxy's counters are not asked.
function Clock.pass(c, n)
	if n > c.credit or n > SMALL_MOST then return false end
	c.credit = c.credit - n
	return true
end

return Clock
