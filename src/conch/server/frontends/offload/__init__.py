"""Runs codecs on large messages in worker processes, so that no message blocks the event loop.

`pool` is the server's side, `worker` the process, `jobs` what it runs, `wire` the frames between them.
"""
