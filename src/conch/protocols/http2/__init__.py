"""HTTP/2 (RFC 9113) for servers: frames, header blocks, windows, streams, and the listener that carries them."""
