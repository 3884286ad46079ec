"""HPACK's dynamic table, in a module that is not compiled: its base class is not."""

from hpack.table import HeaderTable


class ChangeTable(HeaderTable):
    """A dynamic table that records whether an entry was added."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = False

    def add(self, name: bytes, value: bytes) -> None:
        """Add an entry, and record that."""
        self.changed = True
        super().add(name, value)
