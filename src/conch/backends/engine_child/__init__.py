"""What runs in the process of an engine, with an interpreter of its own if wanted: `main.py` and `conch_engine`.

It imports nothing of Conch but `conch_child.wire` and `conch_child.prctl`, the frames and the bond to the server, so
that an environment needs nothing beside the engine's own packages.
"""
