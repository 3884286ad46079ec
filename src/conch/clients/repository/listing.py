"""`conch repo list` and `conch repo show`: print the models of a repository."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from conch.base.control_characters import printable
from conch.base.errors import ConchError, NotFound
from conch.domain.files.model_folder import read_labels
from conch.domain.model_config import TensorSpec
from conch.server.repository.roots import LocalRoot, open_root
from conch.server.repository.store import ModelFiles, Repository

# Larger files of a remote repository are not fetched; configurations and labels are smaller.
_MAX_FILE_BYTES = 4 * 1024 * 1024
_TABLE_COLUMNS = 200  # if the output is not a terminal
_MIN_VERSION_COLUMNS = 60
_MIN_TENSOR_COLUMNS = 120  # of a terminal; a narrower one would split the names of models and tensors

_SET_AT_LOAD = "set at load"  # tensors of a model whose configuration does not have them


@dataclass(frozen=True, slots=True)
class _Row:
    """One model, or why it cannot be read."""

    name: str
    size: int
    files: ModelFiles | None = None
    error: str = ""

    def document(self) -> dict[str, Any]:
        if self.files is None:
            return {"name": self.name, "size": self.size, "error": self.error}
        config = self.files.config
        return {
            "name": self.name,
            "versions": list(self.files.versions_on_disk),
            "backend": config.backend,
            "platform": config.platform,
            "max_batch_size": config.max_batch_size,
            "inputs": [_tensor(spec) for spec in config.inputs],
            "outputs": [_tensor(spec) for spec in config.outputs],
            "size": self.size,
        }


def list_models(given: Namespace) -> int:
    """Print a table, or JSON, of all models; return 1 if one of them cannot be read. Raises ConchError."""
    models = _open(given)
    snapshot = sorted(models.snapshot().items())
    rows = [_row(models, name, sum(size for _, _, size in stamps)) for name, stamps in snapshot]
    if given.json:
        print(json.dumps([row.document() for row in rows], indent=2))
    elif rows:
        _print_table(rows, given.repository)
    else:
        place = given.repository
        remedy = "" if "://" in place else f"; add one with conch repo add --repository={place} SOURCE"
        print(f"there are no models in {place}{remedy}")
    return 1 if any(row.error for row in rows) else 0


def show_model(given: Namespace) -> int:
    """Print a model's configuration, files and labels; return 0. Raises ConchError."""
    models, name = _open(given), given.model
    try:
        files = models.read(name)
    except NotFound as error:  # Triton's words do not name the model
        if name in models.names():  # known of a remote repository once it was read
            raise
        raise NotFound(f"model '{name}' is not in {given.repository}{models.suggestion(name)}") from error
    try:
        document = model_document(files)
    finally:
        files.discard()
    if given.json:
        print(json.dumps(document, indent=2))
    else:
        print_model(document)
    return 0


def model_document(files: ModelFiles) -> dict[str, Any]:
    """Return the configuration, files and labels of a model as JSON values. Raises ConchError."""
    labels = read_labels(files.config, files.directory)
    return {
        "config": files.document,
        "versions": list(files.versions_on_disk),
        "files": [{"path": path, "size": size} for path, _, size in files.fingerprint if not path.endswith("/")],
        "labels": {output: list(texts) for output, texts in labels.items()},
    }


def print_model(document: Mapping[str, Any]) -> None:
    """Print what `model_document` has returned."""
    console = Console()
    console.print_json(data=document["config"])
    for file in document["files"]:
        console.print(f"{decimal(file['size']):>10}  {printable(file['path'])}", highlight=False, markup=False)
    for output, texts in document["labels"].items():
        console.print(f"labels of {output}: {len(texts)}: {', '.join(texts[:5])} …", highlight=False, markup=False)


def _open(given: Namespace) -> Repository:
    if "://" not in given.repository:
        return Repository([LocalRoot(Path(given.repository))])
    cache, limit = given.repository_cache, given.repository_cache_limit
    return Repository([open_root(given.repository, cache, max_file_bytes=_MAX_FILE_BYTES, cache_limit=limit)])


def _row(models: Repository, name: str, size: int) -> _Row:
    try:
        files = models.read(name)
    except ConchError as error:
        return _Row(name, size, error=error.message)
    files.discard()
    return _Row(name, size, files)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "dims": list(spec.dims)}


def _print_table(rows: Sequence[_Row], repository: str) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = _TABLE_COLUMNS
    wide, narrow = console.width >= _MIN_TENSOR_COLUMNS, console.width < _MIN_VERSION_COLUMNS
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    titles = ("model", *(() if narrow else ("versions",)), "backend")
    for title in (*titles, *(("platform", "inputs", "outputs") if wide else ())):
        table.add_column(title, overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    for row in rows:
        size = decimal(row.size)
        if row.files is None:
            table.add_row(printable(row.name), *[""] * (len(table.columns) - 2), size, style="red")
            continue
        config = row.files.config
        versions = () if narrow else (", ".join(map(str, row.files.versions_on_disk)) or "none",)
        tensors = ["\n".join(map(_shown, specs)) or _SET_AT_LOAD for specs in (config.inputs, config.outputs)]
        table.add_row(
            printable(row.name), *versions, config.backend, *((config.platform, *tensors) if wide else ()), size
        )
    console.print(table)
    if not wide:
        hint = f"conch repo show {printable(repository)} MODEL prints inputs and outputs."
        console.print(hint, markup=False, highlight=False, soft_wrap=True)
    for row in rows:
        if row.error:
            text = printable(f"{row.name}: {row.error}")
            console.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def _shown(spec: TensorSpec) -> str:
    # Round brackets, because rich treats square ones as markup.
    return f"{spec.name} {spec.datatype}({', '.join(map(str, spec.dims))})"
