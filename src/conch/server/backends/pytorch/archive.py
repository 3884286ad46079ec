"""PyTorch files, read as zip archives, without torch and without unpickling.

    TorchScript    torch.jit.save                            a program for PyTorch's own interpreter
    exported       torch.export.save                         a graph of operators, with datatypes and shapes
    compiled       torch._inductor.aoti_compile_and_package  machine code

`torch.save` writes a pickle, which can run any code when it is loaded, and needs the code that it was made with.
"""

import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from conch.base.errors import Code, ModelLoadError
from conch.base.typed_json import check_json_values
from conch.domain.files.signature import Signature, TensorInfo

# More than any description of a graph.
_MAX_DESCRIPTION_BYTES = 256 << 20

# Numbers of element types in exported programs → wire datatypes.
_DATATYPES = {
    1: "UINT8",
    2: "INT8",
    3: "INT16",
    4: "INT32",
    5: "INT64",
    6: "FP16",
    7: "FP32",
    8: "FP64",
    12: "BOOL",
    13: "BF16",
    28: "UINT16",
    34: "UINT32",
    35: "UINT64",
}
# Names of operators that open files, in a program's text.
_FILE_OPERATORS = re.compile(rb"\bfrom_file\b|\bload_tensor\b|\b(?:torch|aten)\W{1,20}save\b")
_MAX_PROGRAM_BYTES = 64 << 20
_PICKLE_START = b"\x80"
_REMEDY = (
    "save the model with torch.jit.save or torch.export.save; or serve its code: a model.py with the torch.nn.Module "
    'beside a model.pt of its state_dict, and runtime: "model.py" in config.pbtxt'
)


class Format(Enum):
    """Format of a file."""

    TORCHSCRIPT = "TorchScript"
    EXPORTED = "torch.export program"
    COMPILED = "AOTInductor package"


@dataclass(frozen=True, slots=True)
class Archive:
    """A file and its format. `members` maps names without the top folder to those in the archive."""

    path: Path
    format: Format
    members: Mapping[str, str]

    def document(self, member: str) -> Any:
        """Return a JSON member. Raises ModelLoadError if it is missing or not JSON."""
        try:
            with ZipFile(self.path) as file:
                info = file.getinfo(self.members[member])
                if info.file_size > _MAX_DESCRIPTION_BYTES:
                    raise ModelLoadError(
                        f"'{member}' in '{self.path}' has {info.file_size} bytes; the maximum is "
                        f"{_MAX_DESCRIPTION_BYTES}"
                    )
                content = file.read(info)
            check_json_values(content)
            return json.loads(content)
        except (OSError, BadZipFile, ValueError, KeyError, RuntimeError, NotImplementedError, zlib.error) as error:
            raise ModelLoadError(f"'{member}' in '{self.path}' cannot be read: {error}") from error


def open_archive(path: Path) -> Archive:
    """Open a file and detect its format. Raises ModelLoadError, with the remedy, for other files."""
    try:
        with ZipFile(path) as file:
            names = file.namelist()
    except OSError as error:
        raise ModelLoadError(f"'{path}' cannot be read: {error.strerror}", Code.UNAVAILABLE) from error
    except BadZipFile as error:
        with path.open("rb") as opened:
            start = opened.read(1)
        if start == _PICKLE_START:
            raise ModelLoadError(
                f"'{path}' is a pickle, which is not loaded because it can run any code; {_REMEDY}"
            ) from None
        raise ModelLoadError(f"'{path}' is damaged or not a PyTorch file: {error}") from error
    members = {name.partition("/")[2]: name for name in names}
    return Archive(path, _format(path, members), members)


def refuse_file_operators(archive: Archive) -> None:
    """Raise ModelLoadError for a TorchScript program that reads or writes files: it runs in the server's process."""
    left = _MAX_PROGRAM_BYTES
    try:
        with ZipFile(archive.path) as file:
            for member, name in archive.members.items():
                if not (member.startswith("code/") and member.endswith(".py")):
                    continue
                left -= file.getinfo(name).file_size
                if left < 0:
                    raise ModelLoadError(f"the program in '{archive.path}' has more than {_MAX_PROGRAM_BYTES} bytes")
                if operator := _FILE_OPERATORS.search(file.read(name)):
                    raise ModelLoadError(
                        f"'{archive.path}' opens files ('{operator[0].decode()}' in {member}), which a TorchScript "
                        "model may not: it runs in the server's process; serve a model.py, which runs in a separate one"
                    )
    except (OSError, BadZipFile, KeyError, RuntimeError, NotImplementedError, zlib.error) as error:
        raise ModelLoadError(f"the program in '{archive.path}' cannot be read: {error}") from error


def exported_signature(archive: Archive) -> Signature:
    """Return the inputs of an exported program, named like arguments of `forward`, and outputs `OUTPUT__<position>`.

    Raises ModelLoadError for pickles in the archive, and for a description of unknown form.
    """
    try:
        _refuse_pickles(archive)
        graph = archive.document("models/model.json")["graph_module"]
        values = graph["graph"]["tensor_values"]
        inputs = [_argument(spec, "user_input") for spec in graph["signature"]["input_specs"]]
        outputs = [_argument(spec, "user_output") for spec in graph["signature"]["output_specs"]]
        return Signature(
            inputs=tuple(_info(name, name, values) for name in inputs if name is not None),
            outputs=tuple(
                _info(f"OUTPUT__{place}", name, values)
                for place, name in enumerate(name for name in outputs if name is not None)
            ),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(
            f"the description of the program in '{archive.path}' has an unknown form "
            f"({type(error).__name__}: {error}); save the model again with torch.export.save"
        ) from error


def _format(path: Path, members: Mapping[str, str]) -> Format:
    if "constants.pkl" in members and any(name.startswith("code/") for name in members):
        return Format.TORCHSCRIPT
    if any(name.startswith("data/aotinductor/") for name in members):
        return Format.COMPILED
    if "models/model.json" in members:
        return Format.EXPORTED
    if "serialized_exported_program.json" in members.values():
        raise ModelLoadError(
            f"'{path}' was saved by torch.export.save of torch 2.7 or older; save it again with a newer version"
        )
    if "data.pkl" in members:
        raise ModelLoadError(
            f"'{path}' was made by torch.save: a pickle or a state_dict, which is not loaded because it can run any "
            f"code; {_REMEDY}"
        )
    raise ModelLoadError(f"'{path}' is a zip archive, but neither TorchScript nor of torch.export or AOTInductor")


def _refuse_pickles(archive: Archive) -> None:
    """Raise ModelLoadError for pickles: torch.export stores subclasses of Tensor and other objects as pickles."""
    for member in archive.members:
        if not member.endswith("_config.json"):
            continue
        entries = archive.document(member).get("config", {})
        pickled = [name for name, entry in entries.items() if entry.get("use_pickle")]
        if pickled:
            raise ModelLoadError(
                f"'{archive.path}' holds '{pickled[0]}' as a pickle, which is not loaded because it can run any code; "
                "make it a plain tensor before torch.export.export"
            )


def _argument(spec: Mapping[str, Any], kind: str) -> str | None:
    """Return the name of a user's input or output, None for others: weights, states."""
    if kind not in spec:
        return None
    argument = spec[kind]["arg"]
    return str(argument["as_tensor"]["name"])


def _info(name: str, value: str, values: Mapping[str, Any]) -> TensorInfo:
    meta = values[value]
    return TensorInfo(
        name, _DATATYPES.get(meta["dtype"], ""), tuple(_sizes(meta)), f"torch dtype number {meta['dtype']}"
    )


def _sizes(meta: Mapping[str, Any]) -> Iterator[int]:
    for size in meta["sizes"]:
        yield size.get("as_int", -1)
