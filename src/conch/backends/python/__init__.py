"""Triton's Python models: the server's side. The model's side is `child/conch_child/python`."""
