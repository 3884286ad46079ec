"""`backend: "scripted"`: an engine that says what its `model.json` tells it to, and needs no model.

For trying clients without weights, and for measuring what the server itself costs. The script's form is described in
`conch_child/engine/scripted.py`.
"""

from conch.backends.base import ModelSource
from conch.backends.engines.base import Engine, EngineBackend
from conch.backends.engines.process_engine import ProcessEngine


class ScriptedBackend(EngineBackend):
    """Words from a script, one a step."""

    name = "scripted"
    can_use_gpus = False

    def engine(self, source: ModelSource) -> Engine:
        return ProcessEngine(source, self.name, environment=self.environment)


backend = ScriptedBackend
