"""Triton's Python models: the server's side. The model's side is `conch_child/python`."""
