"""Compiles the request path when a wheel is built.

The modules named in pyproject.toml are ordinary typed Python. mypyc makes C extensions of them, which Python imports in
place of the sources that lie beside them. Where that cannot be done, for want of a C compiler say, the wheel holds the
sources alone: the same server, slower. An editable install is never compiled, so that an edit takes effect.
"""

import json
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

# A file of C for each module: all in one takes gcc 1.4 GB of memory, and minutes without a sign of progress.
_SETUP = """
import json, os, sys
from concurrent.futures import ThreadPoolExecutor
from mypyc.build import mypycify
from setuptools import setup
from setuptools.command.build_ext import build_ext

class CompileInParallel(build_ext):
    def build_extension(self, extension):
        compile_files = self.compiler.compile

        def compile_each(sources, **settings):
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                objects = pool.map(lambda source: compile_files([source], **settings), sources)
                for number, (source, (file,)) in enumerate(zip(sources, objects), 1):
                    if len(sources) > 1:  # otherwise it is what Python imports a module by
                        print(f"conch: compiled {number} of {len(sources)}: {os.path.basename(source)}", flush=True)
                    yield file

        self.compiler.compile = lambda sources, **settings: list(compile_each(sources, **settings))
        try:
            super().build_extension(extension)
        finally:
            self.compiler.compile = compile_files

modules, options, scratch, level = json.loads(sys.argv.pop())
extensions = mypycify(
    [*options, *modules], group_name="conch", opt_level=level, debug_level="0", target_dir=scratch, multi_file=True
)
for extension in extensions:
    extension.extra_compile_args += [
        "-Wno-misleading-indentation",  # takes gcc minutes on generated code
        "-fvisibility=hidden",  # calls between files are direct, as within one
    ]
setup(name="conch", packages=[], ext_modules=extensions, cmdclass={"build_ext": CompileInParallel})
"""
# What the modules import need not be installed where they are built: its types are unknown then, and the code generic.
_OPTIONS = ["--config-file=", "--ignore-missing-imports", "--no-site-packages", "--no-warn-no-return"]
_LAST_LINES = 40  # of a compiler that failed


class CompileHook(BuildHookInterface[Any]):
    """The `custom` build hook of hatchling."""

    _work: TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled modules to a wheel."""
        setting = os.environ.get(SETTING, "")
        if setting not in _VALUES:
            raise ValueError(f"{SETTING}={setting}: must be no, must, or unset; unset compiles if that is possible")
        if version == "editable" or setting == "no":
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
        job = json.dumps([self.config["modules"], _OPTIONS, str(work / "c"), os.environ.get(LEVEL, "2")])
        steps = ["build_ext", f"--build-lib={built}", f"--build-temp={work / 'objects'}", job]
        # From inside src, where no pyproject.toml is that setuptools would take for its own.
        command = [sys.executable, "-c", _SETUP, *steps]
        last = deque[str](maxlen=_LAST_LINES)
        with subprocess.Popen(
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
