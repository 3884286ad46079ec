"""Values with which the chart is tested: every example, and the cases of each module `values_*.py` beside this one.

A module of cases has a mapping `CASES` from a name to values. Each branch of the templates must be seen in one of them.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from tools.deploy_files import CHART

EXAMPLES = sorted([*CHART.glob("*_values.yaml"), *(CHART / "examples").glob("*.yaml")])
_MODULES = sorted(path.stem for path in Path(__file__).parent.glob("values_*.py"))


def example_values() -> dict[str, dict[str, Any]]:
    """Return the values of each example, by its file's name."""
    return {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in EXAMPLES}


def value_sets() -> dict[str, dict[str, Any]]:
    """Return all values with which the chart is rendered, by name."""
    sets: dict[str, dict[str, Any]] = {"defaults": {}, **example_values()}
    for name in _MODULES:
        cases = import_module(f"{__package__}.{name}").CASES
        sets |= {f"{name.removeprefix('values_')}: {case}": values for case, values in cases.items()}
    return sets
