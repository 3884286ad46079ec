"""The tables of the package: what is data and not code, in CSV files beside the modules that read them."""

import csv
from pathlib import Path


def table_rows(module: str, name: str) -> list[dict[str, str]]:
    """Return the rows of the table `name` in the folder of a module, whose `__file__` is given, by their headings."""
    with Path(module).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
