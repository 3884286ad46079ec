"""Read a TorchScript archive: the arguments of `forward`, and whether its weights are complete. Nothing is executed.

The program is text in `code/`; `data.pkl` names the module's class and the records of weights. Its pickle is read with
stand-ins for all classes, so that it can create nothing else.
"""

import pickle  # nosec - a subclass that creates stand-ins only
import re
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from zipfile import BadZipFile, ZipFile

from conch.server.backends.pytorch.archive import Archive

_MAX_PICKLE_BYTES = 8 << 20
_MAX_PROGRAM_BYTES = 64 << 20
_ITEM_BYTES = {
    **{f"{name}Storage": 1 for name in ("Bool", "Byte", "Char", "QInt8", "QUInt8", "Float8_e4m3fn", "Float8_e5m2")},
    **{f"{name}Storage": 2 for name in ("Half", "BFloat16", "Short")},
    **{f"{name}Storage": 4 for name in ("Float", "Int", "QInt32", "ComplexHalf")},
    **{f"{name}Storage": 8 for name in ("Double", "Long", "ComplexFloat")},
    "ComplexDoubleStorage": 16,
}
# Of newer protocols than TorchScript's: they allocate the size that they say.
_ALLOCATING = (pickle.BYTEARRAY8[0],)
_BRACKETS = {"(": 1, "[": 1, ")": -1, "]": -1}


class DamagedScript(ValueError):
    """The archive is incomplete or damaged."""


@dataclass(frozen=True, slots=True)
class ScriptArguments:
    """The arguments of `forward` by name, and those of them without a default. `single_dict`: it takes a Dict."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    single_dict: bool


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str
    count: int


def read_script(archive: Archive) -> ScriptArguments | None:
    """Check the weights and return the arguments of `forward`, None if they cannot be recognised.

    Raises DamagedScript for a record of weights that is missing or has another size.
    """
    try:
        with ZipFile(archive.path) as file:
            loader = _Loader(BytesIO(_member(file, archive, "data.pkl", _MAX_PICKLE_BYTES)))
            loader.load()
            for storage in loader.storages:
                _check_storage(file, archive, storage)
            text = _program(file, archive, loader.module)
    except (BadZipFile, KeyError, OSError, RuntimeError, NotImplementedError) as error:
        raise DamagedScript(f"it cannot be read: {error}") from None
    except DamagedScript:
        raise
    except (pickle.UnpicklingError, EOFError) as error:
        raise DamagedScript(f"data.pkl cannot be read: {error}") from None
    except Exception:  # of a class that the stand-in does not resemble
        return None
    return _arguments(text, loader.name)


class _Loader(pickle._Unpickler):
    """Reads a pickle without the classes that it names.

    It is the one in Python, since that in C writes as much memory as the number of a single memo says.
    """

    dispatch = {  # noqa: RUF012 - as in the base class
        code: load for code, load in pickle._Unpickler.dispatch.items() if code not in _ALLOCATING
    }

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file)
        self.storages: list[_Storage] = []
        self.module = ""  # of the first class: that of the program
        self.name = ""

    def find_class(self, module: str, name: str, /) -> Any:
        if not self.module:
            self.module, self.name = module, name
        # Storages are recognised by their name, which is that of the stand-in.
        return type(name, (_StandIn,), {})

    def persistent_load(self, pid: Any, /) -> Any:
        if isinstance(pid, tuple) and len(pid) == 5 and pid[0] == "storage":
            count = pid[4] if isinstance(pid[4], int) else 0
            self.storages.append(_Storage(getattr(pid[1], "__name__", ""), str(pid[2]), count))
        return None


class _StandIn(dict[Any, Any]):
    """An object of any class: accepts whatever it is created from and given."""

    def __new__(cls, *_arguments: Any, **_named: Any) -> "_StandIn":
        return super().__new__(cls)

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        del state

    def append(self, item: Any) -> None:
        """Accept the items of a list."""
        del item


def _check_storage(file: ZipFile, archive: Archive, storage: _Storage) -> None:
    name = f"data/{storage.key}"
    if name not in archive.members:
        raise DamagedScript(f"it lacks the weights '{name}'")
    size = file.getinfo(archive.members[name]).file_size
    expected = _ITEM_BYTES.get(storage.kind, 0) * storage.count
    if expected and size != expected:
        raise DamagedScript(f"its weights '{name}' have {size} bytes instead of {expected}")


def _program(file: ZipFile, archive: Archive, module: str) -> str:
    member = f"code/{module.replace('.', '/')}.py"
    if member not in archive.members:
        return ""
    return _member(file, archive, member, _MAX_PROGRAM_BYTES).decode("utf-8", "replace")


def _member(file: ZipFile, archive: Archive, name: str, limit: int) -> bytes:
    if name not in archive.members:
        raise DamagedScript(f"it has no {name}")
    info = file.getinfo(archive.members[name])
    if info.file_size > limit:
        raise DamagedScript(f"its {name} has {info.file_size} bytes")
    return file.read(info)


def _arguments(text: str, name: str) -> ScriptArguments | None:
    """Read `def forward(self: …, x: Tensor, y: int=1) -> …` of a class."""
    begin = re.search(rf"^class {re.escape(name)}\(Module\):\n", text, re.MULTILINE)
    body = text[begin.end() :].partition("\nclass ")[0] if begin else ""
    head = re.search(r"^  def forward\(", body, re.MULTILINE)
    if head is None:
        return None
    parts, depth, start = [], 1, head.end()
    for at in range(head.end(), len(body)):
        depth += _BRACKETS.get(body[at], 0)
        if depth == 0 or (depth == 1 and body[at] == ","):
            parts.append(body[start:at].strip())
            start = at + 1
        if depth == 0:
            break
    if depth:
        return None
    arguments = [part for part in parts[1:] if part]
    names = [re.split(r"[:= ]", part, maxsplit=1)[0] for part in arguments]
    required = [argument for argument, part in zip(names, arguments, strict=True) if "=" not in part]
    types = [part.partition(":")[2].partition("=")[0].strip() for part in arguments]
    return ScriptArguments(tuple(names), tuple(required), len(types) == 1 and types[0].startswith("Dict["))
