"""Compiles the request path when a wheel is built, and adds the Helm chart and the templates of conch new.

The modules that tools/compile_modules.py compiles are ordinary typed Python. mypyc makes C extensions of them, which
Python imports in place of the sources. Without a C compiler the wheel holds the sources alone: the same server, slower.
An editable install is never compiled, so that an edit takes effect.
"""

import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# "no": sources alone; "must": no wheel rather than an uncompiled one; "": compiled if that is possible.
SETTING = "CONCH_COMPILE"
_VALUES = ("", "no", "must")
# How far the C compiler optimizes, 0 to 3. 0 takes two thirds of the time, which is for tests.
LEVEL = "CONCH_COMPILE_LEVEL"

_LAST_LINES = 40  # of a compiler that failed
# The Helm chart, which conch k8s renders.
_CHART, _CHART_IN_WHEEL = "deploy/helm/conch", "conch/operate/deployment/helm_chart"
# What conch new writes.
_TEMPLATES, _TEMPLATES_IN_WHEEL = "examples/new", "conch/clients/python_app/templates"


class CompileHook(BuildHookInterface[Any]):
    """The `custom` build hook of hatchling."""

    _work: TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled modules to a wheel."""
        setting = os.environ.get(SETTING, "")
        if setting not in _VALUES:
            raise ValueError(f"{SETTING}={setting}: must be no, must, or unset; unset compiles if that is possible")
        if version == "editable":
            return
        build_data["force_include"][_CHART] = _CHART_IN_WHEEL
        build_data["force_include"][_TEMPLATES] = _TEMPLATES_IN_WHEEL
        if setting == "no":
            return
        self._work = TemporaryDirectory(prefix="conch-build-")
        built = self._compile(Path(self._work.name))
        if built is None:
            if setting == "must":
                raise RuntimeError("the request path could not be compiled; see above")
            self.app.display_warning("conch: not compiled (see above); the server runs from its sources, slower")
            return
        build_data["force_include"].update((str(file), str(file.relative_to(built))) for file in built.rglob("*.so"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what is not needed any more."""
        if self._work is not None:
            self._work.cleanup()

    def _compile(self, work: Path) -> Path | None:
        """Return the folder with the extension modules, None if they could not be made."""
        self.app.display_info("conch: compiling the request path; this takes minutes on a small machine")
        built = work / "built"
        program = Path(self.root) / "tools" / "compile_modules.py"
        command = [sys.executable, str(program), str(built), str(work), os.environ.get(LEVEL, "2")]
        last = deque[str](maxlen=_LAST_LINES)
        with subprocess.Popen(  # inside src, because setuptools would read pyproject.toml where it finds one
            command, cwd=Path(self.root) / "src", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as compiling:
            for line in compiling.stdout or ():
                last.append(line)
                if line.startswith("conch:"):
                    self.app.display_info(line.rstrip())
        if compiling.returncode:
            self.app.display_warning("".join(last))
            return None
        return built
