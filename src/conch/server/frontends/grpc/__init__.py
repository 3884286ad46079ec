"""gRPC on HTTP/2 streams: framing, dispatch, status."""
