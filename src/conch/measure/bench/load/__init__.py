"""The load generator: processes that send prepared requests and record when each is sent and answered."""
