"""A client that measures inference servers: it knows their wire formats and nothing else of them."""
