"""Three scripts that the server runs for the driver, each of them alone and at once.

A row is a string under ``{NAME}:row:KEY``: its version (16 digits), a blank, the nonce of the call that wrote it
(16 letters), a blank, and the row's bytes. Beside the rows are

- ``{NAME}:keys``      the keys in order; one whose row has expired stays here until the next scan,
- ``{NAME}:gone``      the keys that were deleted lately, by the version of the deletion: 0.6 reads it in its waits,
- ``{NAME}:revision``  the highest version so far,
- ``{NAME}:format``    the format of all this.

Versions are numbers that Lua can count exactly (below 2**53) and are compared as text. The next one is the server's
time in microseconds, or one more than the last one if that is higher. So they go on above all earlier ones when the
server comes back with nothing, or with an older copy, as long as its clock is not set back as well.
"""

from __future__ import annotations

FORMAT = 1
VERSION_DIGITS = 16
NONCE_LETTERS = 16
HEAD = VERSION_DIGITS + 1 + NONCE_LETTERS + 1
"""The bytes before a row's own."""

REMEMBERED_DELETIONS = 10_000
REMEMBERED_MICROSECONDS = 600_000_000
"""Limits of remembered deletions: their number and their age."""

DELETE = "delete"
"""The time to live that deletes the row."""

# KEYS: revision, keys, gone, then the rows. ARGV: mode, nonce, channel, how many bytes are before a row's key, then
# for each row: the expected version ("" for none), the time to live ("" for never), the bytes.
# All rows are looked at before the first is changed, so that an error that comes from looking has changed nothing.
SWAP = f"""
local mode, nonce, channel, skip = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local base = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0))
local version_of, outcomes, writes = {{}}, {{}}, {{}}

for number = 1, #KEYS - 3 do
  local row, at = KEYS[number + 3], 2 + 3 * number
  local was = version_of[row] or redis.call('GETRANGE', row, 0, {VERSION_DIGITS - 1})
  if was ~= ARGV[at] then
    if mode == 'all' then return '-' end
    outcomes[number] = '-'
  elseif ARGV[at + 1] ~= '{DELETE}' then
    local version = string.format('%0{VERSION_DIGITS}.0f', base + number)
    writes[#writes + 1] = {{row, version, ARGV[at + 1], ARGV[at + 2], was == ''}}
    version_of[row], outcomes[number] = version, version
  else
    if was ~= '' then writes[#writes + 1] = {{row, base + number, '{DELETE}'}} end
    version_of[row], outcomes[number] = '', '0'
  end
end
if #writes == 0 then return table.concat(outcomes, ',') end

local common, deleted
for _, write in ipairs(writes) do
  local row, version, ttl, key = write[1], write[2], write[3], string.sub(write[1], skip + 1)
  if ttl == '{DELETE}' then
    redis.call('DEL', row)
    redis.call('ZREM', KEYS[2], key)
    redis.call('ZADD', KEYS[3], version, key)
    deleted = true
  else
    local bytes = version .. ' ' .. nonce .. ' ' .. write[4]
    if ttl == '' then redis.call('SET', row, bytes) else redis.call('SET', row, bytes, 'PX', ttl) end
    if write[5] then redis.call('ZADD', KEYS[2], 0, key) end
  end
  common = common or key
  while string.sub(key, 1, #common) ~= common do common = string.sub(common, 1, #common - 1) end
end
local revision = string.format('%0{VERSION_DIGITS}.0f', base + #KEYS - 3)
redis.call('SET', KEYS[1], revision)
if deleted then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', base - {REMEMBERED_MICROSECONDS})
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -{REMEMBERED_DELETIONS + 1})
end
redis.pcall('PUBLISH', channel, revision .. common)
return table.concat(outcomes, ',')
"""

# KEYS: keys. ARGV: the first key and the end of the range, the bytes before each key of a row.
# It answers with keys and rows in turn, and forgets the keys of rows that have expired.
SCAN = """
local found, expired = {}, {}
local keys = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2])
for from = 1, #keys, 1000 do
  local rows, to = {}, math.min(from + 999, #keys)
  for number = from, to do rows[#rows + 1] = ARGV[3] .. keys[number] end
  for number, bytes in ipairs(redis.call('MGET', unpack(rows))) do
    local key = keys[from + number - 1]
    if bytes then
      found[#found + 1] = key
      found[#found + 1] = bytes
    else
      expired[#expired + 1] = key
    end
  end
end
for from = 1, #expired, 1000 do
  redis.pcall('ZREM', KEYS[1], unpack(expired, from, math.min(from + 999, #expired)))
end
return found
"""

# KEYS: format, revision, a key for trials. ARGV: our format, channel. It answers with the format that is stored.
# Everything that the other scripts do is tried: a user who may not do all of it gets the error now, not within a swap.
OPEN = f"""
local stored = redis.call('GET', KEYS[1])
if stored and stored ~= ARGV[1] then return stored end
redis.call('SET', KEYS[3], '', 'PX', 1000)
redis.call('GETRANGE', KEYS[3], 0, 1)
redis.call('MGET', KEYS[3])
redis.call('DEL', KEYS[3])
redis.call('ZADD', KEYS[3], 0, '')
redis.call('ZRANGEBYLEX', KEYS[3], '-', '+')
redis.call('ZREMRANGEBYSCORE', KEYS[3], 1, 1)
redis.call('ZREMRANGEBYRANK', KEYS[3], 1, 1)
redis.call('ZREM', KEYS[3], '')
redis.call('PUBLISH', ARGV[2], '')
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('SET', KEYS[2], string.format('%0{VERSION_DIGITS}.0f', now), 'NX')
redis.call('SET', KEYS[1], ARGV[1])
return ARGV[1]
"""
