"""Conch: an inference server that reads a Triton model repository and speaks Triton's protocols.

Models in Python need only this package's names: `@conch.model` declares one, `conch.serve()` serves a script's models,
and `conch.TestClient` calls them in tests. All are imported on first use.
"""

__version__ = "0.1.0"

_DECLARATIONS = "conch.server.backends.child.conch_child.python.app.declare"
_PLACES = dict.fromkeys(("Image", "InvalidInput", "Tensor", "endpoint", "model"), _DECLARATIONS) | {
    "TestClient": "conch.clients.python_app.test_client",
    "serve": "conch.clients.python_app.serve",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'conch' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
