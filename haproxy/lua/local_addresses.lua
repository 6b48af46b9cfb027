-- Refuses addresses that other machines can reach, before HAProxy starts: neither peers
-- nor SPOE has authentication, and the stats socket may do everything.

-- reachable_from_elsewhere reports whether an address is neither a unix socket nor one
-- of loopback. HAProxy takes lists and ranges; here they are refused like what is unknown.
local function reachable_from_elsewhere(address)
	if address:find(",", 1, true) then return true end
	for _, unix in ipairs({ "^/", "^unix@", "^abnsz?@" }) do
		if address:find(unix) then return false end
	end
	address = address:gsub("^ipv[46]@", "")
	for _, loopback in ipairs({ "^127%.%d+%.%d+%.%d+:%d+$", "^localhost:%d+$", "^%[::1%]:%d+$" }) do
		if address:find(loopback) then return false end
	end
	return true
end

for name, why in pairs({
	SLUICE_PEER = "the peers protocol has no authentication",
	SLUICE_SPOE = "SPOE has no authentication",
	SLUICE_COSTS = "who reaches it changes what users were charged",
	SLUICE_RUNTIME = "the runtime socket lets everybody lift limits",
	SLUICE_STATS = "the stats socket lets everybody do everything",
}) do
	local address = os.getenv(name)
	if address and reachable_from_elsewhere(address) then
		error(name .. "=" .. address .. " can be reached from other machines, and " .. why
			.. ": use unix@/path, or 127.0.0.1:PORT", 0)
	end
end
