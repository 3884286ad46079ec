"""Forests of treelite, and the process that reads and validates their files.

treelite trusts its input: for a damaged file it may allocate any amount of memory, loop forever or crash. So a separate
process under resource limits reads the file, checks the trees and writes a treelite checkpoint, which is all that the
server reads. The only module that imports `treelite`.
"""

import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import treelite

from conch.server.backends.fil.forest_files import check_form
from conch.server.backends.processes.launch import ChildEnvironment

VERSION = f"treelite {treelite.__version__}"

_Reader = Callable[[Path, bool], treelite.Model]

# Timeout as a multiple of the limit of processor time, for slow disks and busy machines.
_TIMEOUT_FACTOR = 20
# Each thread would reserve memory, and reading uses one.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# Beginnings of the C++ library's messages for invalid sizes.
_INVALID_SIZE = ("std::bad_alloc", "std::length_error", "basic_string::", "vector::")
_DAMAGED = "the file may be damaged"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Processor time and memory for reading a file: many times those of a valid file."""

    seconds: int = 20
    bytes_per_second: int = 500_000
    memory: int = 1 << 30  # bytes
    memory_per_byte: int = 40


class Forest:
    """A validated forest."""

    def __init__(self, model: treelite.Model) -> None:
        self._model = model
        header = model.get_header_accessor()
        self.trees: int = model.num_tree
        self.features: int = model.num_feature
        # Scores per row: one for regression and for two classes.
        self.classes = int(header.get_field("num_target")[0]) * int(max(header.get_field("num_class")))

    def scores(self, rows: npt.NDArray[Any], threads: int) -> npt.NDArray[Any]:
        """Return the scores [rows, classes] for rows [rows, features]; does not check the shape."""
        scores: npt.NDArray[Any] = treelite.gtil.predict(self._model, np.ascontiguousarray(rows), nthread=threads)
        return scores.reshape(len(rows), -1)


def read_forest(path: Path, kind: str, *, lenient: bool = False, limits: ReadLimits | None = None) -> Forest:
    """Read a file of a `kind` in `forest_files.FILENAMES`. With `lenient`, unknown fields are ignored.

    Raises ValueError for an invalid file, OSError if there is no space for the checkpoint.
    """
    check_form(path, kind)
    limits = limits or ReadLimits()
    size = path.stat().st_size
    seconds = limits.seconds + size // limits.bytes_per_second
    memory = limits.memory + size * limits.memory_per_byte
    timeout_s = seconds * _TIMEOUT_FACTOR
    with TemporaryDirectory(prefix="conch-forest-") as folder:
        copy = Path(folder) / "checkpoint.tl"
        arguments = (kind, path, copy, int(lenient), seconds, memory)
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-m", __name__, *map(str, arguments)],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
                env=ChildEnvironment().variables() | _ONE_THREAD, start_new_session=True, timeout=timeout_s,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"reading it took longer than {timeout_s} seconds") from error
        if ended.returncode:
            raise ValueError(_reason(ended, seconds))
        return Forest(treelite.Model.deserialize(copy))


def _reason(ended: subprocess.CompletedProcess[str], seconds: int) -> str:
    if ended.returncode == -signal.SIGXCPU:
        return f"reading it took more than {seconds} seconds of processor time; {_DAMAGED}"
    if ended.returncode < 0:
        return f"its reader was killed by {signal.Signals(-ended.returncode).name}; {_DAMAGED}"
    printed = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:]
    if ended.returncode == 1 and printed:
        return printed[0]
    return f"its reader exited with status {ended.returncode}; {_DAMAGED}{''.join(f': {line}' for line in printed)}"


# ── in the process that reads ──


def _xgboost(form: str) -> _Reader:
    return lambda path, lenient: treelite.frontend.load_xgboost_model(
        path, format_choice=form, allow_unknown_field=lenient
    )


_READERS: dict[str, _Reader] = {
    "xgboost": lambda path, _: treelite.frontend.load_xgboost_model_legacy_binary(path),
    "xgboost_json": _xgboost("json"),
    "xgboost_ubj": _xgboost("ubjson"),
    "lightgbm": lambda path, _: treelite.frontend.load_lightgbm_model(path),
    # From bytes: the missing part of a truncated file would be read as zeros.
    "treelite_checkpoint": lambda path, _: treelite.Model.deserialize_bytes(path.read_bytes()),
}


def _check_trees(model: treelite.Model) -> None:
    """Raise ValueError for trees with cycles or invalid indices, and for a model without trees."""
    if not model.num_tree:
        raise ValueError("the model has no trees")
    for number in range(model.num_tree):
        tree = model.get_tree_accessor(number)
        left, right = tree.get_field("cleft"), tree.get_field("cright")
        inner = left != -1
        children = np.concatenate([left[inner], right[inner]])
        # The root is not a child, and each other node has at most one parent: then there are no cycles.
        if children.size and (children.min() < 1 or children.max() >= left.size):
            raise ValueError(f"tree {number} has an invalid child: its root, or a node that does not exist")
        if np.unique(children).size != children.size:
            raise ValueError(f"tree {number} has a node with two parents")
        if (tree.get_field("split_index")[inner] >= model.num_feature).any():
            raise ValueError(f"tree {number} uses a feature that is not among the model's {model.num_feature}")


def _limit(seconds: int, memory: int) -> None:
    """Limit this process; `memory` is added to its current size."""
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, mapped + memory),
    ):
        hard = resource.getrlimit(limit)[1]
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (soft, hard))


def _main(kind: str, path: str, copy: str, lenient: str, seconds: str, memory: str) -> None:
    _limit(int(seconds), int(memory))
    try:
        model = _READERS[kind](Path(path), bool(int(lenient)))
        _check_trees(model)
        model.serialize(copy)
    except UnicodeDecodeError:  # treelite quotes the file in its message
        sys.exit("the file is not valid UTF-8")
    except (treelite.TreeliteError, MemoryError, OSError, ValueError) as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        too_large = isinstance(error, MemoryError) or text.startswith(_INVALID_SIZE)
        sys.exit(f"reading it requires too much memory; {_DAMAGED}: {text}" if too_large else text)


if __name__ == "__main__":
    _main(*sys.argv[1:])
