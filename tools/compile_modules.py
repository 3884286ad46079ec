"""Compiles the request path with mypyc; hatch_build.py runs it in `src` when a wheel is built.

The modules are those whose first line is `MARKER`. Classes in them have no subclasses elsewhere (mypyc). A function
defined within a function would leak: mypyc may make it and its variables refer to each other.
"""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MARKER = "# Compiled by mypyc in wheels."

# What the modules import need not be installed where they are built: its types are unknown then, and the code generic.
_MYPY_OPTIONS = ["--config-file=", "--ignore-missing-imports", "--no-site-packages", "--no-warn-no-return"]
_COMPILER_OPTIONS = [
    "-Wno-misleading-indentation",  # takes gcc minutes on generated code
    "-fvisibility=hidden",  # calls between files are direct, as within one
]


def compiled_modules(source: Path) -> list[str]:
    """Return the paths of the modules that wheels hold in compiled form, too, below the folder `source`."""
    paths = sorted(source.rglob("*.py"))
    return [path.relative_to(source).as_posix() for path in paths if path.read_text("utf-8").startswith(MARKER + "\n")]


def main(built: Path, work: Path, level: str) -> None:
    """Compile the modules below the working folder into `built`, with `level` (0 to 3) of the C compiler."""
    from mypyc.build import mypycify
    from setuptools import setup
    from setuptools.command.build_ext import build_ext

    class CompileInParallel(build_ext):  # type: ignore[misc]  # setuptools has no types
        def build_extension(self, extension: Any) -> None:
            compile_files = self.compiler.compile

            def compile_each(sources: list[str], **settings: Any) -> Iterator[str]:
                with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
                    objects = pool.map(lambda source: compile_files([source], **settings), sources)
                    for number, (source, (file,)) in enumerate(zip(sources, objects, strict=True), 1):
                        if len(sources) > 1:  # otherwise it is what Python imports a module by
                            print(f"conch: compiled {number} of {len(sources)}: {Path(source).name}", flush=True)
                        yield file

            self.compiler.compile = lambda sources, **settings: list(compile_each(sources, **settings))
            try:
                super().build_extension(extension)
            finally:
                self.compiler.compile = compile_files

    # A file of C for each module: all in one takes gcc 1.4 GB of memory, and minutes without a sign of progress.
    extensions = mypycify(
        [*_MYPY_OPTIONS, *compiled_modules(Path())],
        group_name="conch",
        opt_level=level,
        debug_level="0",
        target_dir=str(work / "c"),
        multi_file=True,
    )
    for extension in extensions:
        extension.extra_compile_args += _COMPILER_OPTIONS
    setup(
        name="conch",
        packages=[],
        ext_modules=extensions,
        cmdclass={"build_ext": CompileInParallel},
        script_args=["build_ext", f"--build-lib={built}", f"--build-temp={work / 'objects'}"],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
