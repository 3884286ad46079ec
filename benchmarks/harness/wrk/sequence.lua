-- Posts sequences of requests, one after the other on each connection; run it with a thread for each connection.
-- Arguments after "--": as those of post.lua. The header "sequence-length" is how many requests a sequence has; the body
-- is a request in the midst of the sequence 1000000000.

dofile(debug.getinfo(1, "S").source:match("^@(.*/)") .. "post.lua")

local read_arguments, threads = init, 0
local document, tensors, length
local requests, sequence, position = {}, 0, 0
local probed

function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

function init(args)
  read_arguments(args)
  local size = tonumber(wrk.headers["inference-header-content-length"])
  document, tensors = wrk.body:sub(1, size), wrk.body:sub(size + 1)
  length = tonumber(wrk.headers["sequence-length"])
  wrk.headers["sequence-length"] = nil
  sequence = number * 10000000
  probed = number > 1
end

local function format(from, to)
  local json = document:gsub('"sequence_id":1000000000', string.format('"sequence_id":%d', sequence))
  json = json:gsub(from, to)
  wrk.headers["inference-header-content-length"] = #json
  return wrk.format(nil, nil, nil, json .. tensors)
end

function request()
  if not probed then  -- the first thread is asked once for a request that is not sent
    probed = true
    return format("", "")
  end
  position = position % length + 1
  if position == 1 then
    sequence = sequence + 1
    requests.middle = format("", "")
    requests.last = format('"sequence_end":false', '"sequence_end":true')
    return format('"sequence_start":false', '"sequence_start":true')
  end
  return position == length and requests.last or requests.middle
end
