"""HTTP/2 (RFC 9113) as both sides of a connection need it: frames and header blocks."""
