"""`backend: "scripted"`: an engine without a model that generates the replies scripted in its `model.json`.

To try clients without weights, and to measure the overhead of the server. `conch_child/engine/scripted/driver.py`
describes the script.
"""

from conch.server.backends.engines.backend import EngineBackend


class ScriptedBackend(EngineBackend):
    """Scripted replies, one word per step."""

    name = "scripted"
    can_use_gpus = False


backend = ScriptedBackend
