"""In place of the library: a machine without a GPU."""

from types import SimpleNamespace

cuda = SimpleNamespace(is_available=lambda: False)
