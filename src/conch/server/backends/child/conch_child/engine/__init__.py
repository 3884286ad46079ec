"""The process of an engine: one driver module for each engine, and the loops that run them."""
