-- Posts one fixed request as fast as the answers come, and prints the figures as one line of JSON.
-- Arguments after "--": the file with the body, then name and value of each header in turn.

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.body = file:read("*a")
  file:close()
  wrk.method = "POST"
  for i = 2, #args, 2 do
    wrk.headers[args[i]] = args[i + 1]
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests": %d, "microseconds": %d, "median_us": %d, "p99_us": %d, "bad_status": %d, "broken": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
