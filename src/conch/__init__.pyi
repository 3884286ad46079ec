# The names of the package for type checkers: `__init__.py` imports them on first use.
from typing import Any

import numpy as np

from conch.clients.python_app.serve import serve as serve
from conch.clients.python_app.test_client import TestClient as TestClient
from conch.server.backends.child.conch_child.python.app.declare import InvalidInput as InvalidInput
from conch.server.backends.child.conch_child.python.app.declare import Tensor as Tensor
from conch.server.backends.child.conch_child.python.app.declare import endpoint as endpoint
from conch.server.backends.child.conch_child.python.app.declare import model as model

__version__: str

# An annotation: clients send an image file, the model gets UINT8[height, width, 3].
Image = np.ndarray[Any, Any]
