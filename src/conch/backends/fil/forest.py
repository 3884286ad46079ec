"""Forests, as treelite has them, and the process that reads their files.

treelite trusts what it reads: a damaged file has it ask for any amount of memory, loop for ever or crash. So files are
read in a process of their own, under limits, that looks at the trees and writes them down in treelite's own form; the
server reads no other. The only module that knows `treelite`.
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

from conch.backends.fil.forest_files import check_form
from conch.backends.processes.environment import ChildEnvironment

VERSION = f"treelite {treelite.__version__}"

_Reader = Callable[[Path, bool], treelite.Model]

# How much longer than its processor time a process may take, for a disk that is slow or a machine that is busy.
_PATIENCE = 20
# Threads would each reserve memory, and reading takes one.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# What the C++ library says of sizes that cannot be.
_TOO_MUCH = ("std::bad_alloc", "std::length_error", "basic_string::", "vector::")
_DAMAGED = "as if the file were damaged"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What reading a file may take of processor time and memory: many times what it takes where the file is sound."""

    seconds: int = 20
    bytes_per_second: int = 500_000
    memory: int = 1 << 30
    memory_per_byte: int = 40


class Forest:
    """Trees that were found sound."""

    def __init__(self, model: treelite.Model) -> None:
        self._model = model
        header = model.get_header_accessor()
        self.trees: int = model.num_tree
        self.features: int = model.num_feature
        # How many scores there are for a row: one for regression and for two classes.
        self.classes = int(header.get_field("num_target")[0]) * int(max(header.get_field("num_class")))

    def scores(self, rows: npt.NDArray[Any], threads: int) -> npt.NDArray[Any]:
        """Return the scores [rows, classes] for rows [rows, features]; the shape is not checked here."""
        scores: npt.NDArray[Any] = treelite.gtil.predict(self._model, np.ascontiguousarray(rows), nthread=threads)
        return scores.reshape(len(rows), -1)


def read_forest(path: Path, kind: str, *, lenient: bool = False, limits: ReadLimits | None = None) -> Forest:
    """Read a file, which is of a kind in `forest_files.FILENAMES`. With `lenient`, unknown fields are passed over.

    Raises ValueError with what is wrong, OSError if there is no room for a copy.
    """
    check_form(path, kind)
    limits = limits or ReadLimits()
    size = path.stat().st_size
    seconds = limits.seconds + size // limits.bytes_per_second
    memory = limits.memory + size * limits.memory_per_byte
    with TemporaryDirectory(prefix="conch-forest-") as folder:
        copy = Path(folder) / "checkpoint.tl"
        words = (kind, path, copy, int(lenient), seconds, memory)
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-m", __name__, *map(str, words)],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
                env=ChildEnvironment().variables() | _ONE_THREAD, start_new_session=True, timeout=seconds * _PATIENCE,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"it could not be read within {seconds * _PATIENCE} seconds") from error
        if ended.returncode:
            raise ValueError(_reason(ended, seconds))
        return Forest(treelite.Model.deserialize(copy))


def _reason(ended: subprocess.CompletedProcess[str], seconds: int) -> str:
    if ended.returncode == -signal.SIGXCPU:
        return f"it could not be read within {seconds} seconds of processor time, {_DAMAGED}"
    if ended.returncode < 0:
        return f"reading it ended by {signal.Signals(-ended.returncode).name}, {_DAMAGED}"
    said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()[-1:]
    if ended.returncode == 1 and said:
        return said[0]
    return f"reading it ended with status {ended.returncode}, {_DAMAGED}{''.join(f': {line}' for line in said)}"


# ── what the process does ──


def _xgboost(form: str) -> _Reader:
    return lambda path, lenient: treelite.frontend.load_xgboost_model(
        path, format_choice=form, allow_unknown_field=lenient
    )


_READERS: dict[str, _Reader] = {
    "xgboost": lambda path, _: treelite.frontend.load_xgboost_model_legacy_binary(path),
    "xgboost_json": _xgboost("json"),
    "xgboost_ubj": _xgboost("ubjson"),
    "lightgbm": lambda path, _: treelite.frontend.load_lightgbm_model(path),
    # From bytes: of a file that is cut short, what is missing would be taken for zeros.
    "treelite_checkpoint": lambda path, _: treelite.Model.deserialize_bytes(path.read_bytes()),
}


def _check_trees(model: treelite.Model) -> None:
    """Raise ValueError for a tree that could be walked for ever or out of its memory, or where there is none."""
    if not model.num_tree:
        raise ValueError("there are no trees in it")
    for number in range(model.num_tree):
        tree = model.get_tree_accessor(number)
        left, right = tree.get_field("cleft"), tree.get_field("cright")
        inner = left != -1
        children = np.concatenate([left[inner], right[inner]])
        # The root is nobody's child and each other node one node's: then no way leads back.
        if children.size and (children.min() < 1 or children.max() >= left.size):
            raise ValueError(f"tree {number} leads to nodes that it does not have, or back to its root")
        if np.unique(children).size != children.size:
            raise ValueError(f"tree {number} has a node that two ways lead to")
        if (tree.get_field("split_index")[inner] >= model.num_feature).any():
            raise ValueError(f"tree {number} asks for a feature that is not among {model.num_feature}")


def _limit(seconds: int, memory: int) -> None:
    """Limit this process; the memory comes on top of what it has now."""
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, mapped + memory),
    ):
        hard = resource.getrlimit(limit)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (soft, hard))


def _main(kind: str, path: str, copy: str, lenient: str, seconds: str, memory: str) -> None:
    _limit(int(seconds), int(memory))
    try:
        model = _READERS[kind](Path(path), bool(int(lenient)))
        _check_trees(model)
        model.serialize(copy)
    except UnicodeDecodeError:  # treelite quotes the file in its message
        sys.exit("what is in the file is neither text nor what was expected")
    except (treelite.TreeliteError, MemoryError, OSError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        much = isinstance(error, MemoryError) or said.startswith(_TOO_MUCH)
        sys.exit(f"it asks for more memory than there can be, {_DAMAGED}: {said}" if much else said)


if __name__ == "__main__":
    _main(*sys.argv[1:])
