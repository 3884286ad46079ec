"""`conch repo add`: add a model from a file, a folder or the Hugging Face Hub to a repository."""

import os
import re
import shutil
from argparse import Namespace
from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from conch.base.command_line.say import folded, spinner_of
from conch.base.errors import ConchError, ConfigError, InvalidRequest, Unavailable
from conch.base.extras import install_command
from conch.base.files.atomic import atomic_replace
from conch.check.check_paths import check_paths
from conch.check.finding import Severity
from conch.server.repository.model_entry import FIRST_VERSION, Entry, EntryOptions, entry_of, link, write_entry
from conch.server.repository.model_kinds import SINGLE_FILES, is_model_folder, name_of
from conch.server.repository.store import check_name

_CONFIG = "config.pbtxt"
# The name of the model is at the beginning of a line; names of tensors are indented or in braces.
_NAME_FIELD = re.compile(r"""^name[ \t]*:[ \t]*(?:"[^"\n]*"|'[^'\n]*')[ \t]*[,;]?[ \t]*(?:\r?\n)?""", re.MULTILINE)
# Rules about an ensemble's steps, which may be added later.
_RULES_FOR_STEPS = ("ensemble-contract", "ensemble-missing-model")
_HUB = "hf://"
_MAX_NAMES = 8
_HUB_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[^/]+)?", re.ASCII)
# Backend → the package that it imports; its extra has the backend's name.
_PACKAGES = {
    "fil": "treelite",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "openvino_genai": "openvino_genai",
    "pytorch": "torch",
    "vllm": "vllm",
    "tensorrtllm": "tensorrt_llm",
}
# Backends whose package is most often in a separate environment.
_ELSEWHERE = {
    "vllm": "vLLM in this environment, or --backend-config=vllm,env-path=FOLDER of another",
    "tensorrtllm": "TensorRT-LLM here, or --backend-config=tensorrtllm,env-path=FOLDER of another",
}


def add(given: Namespace) -> int:
    """Add a model and print the written files; return 0. Raises ConchError."""
    console = Console(highlight=False, soft_wrap=True)
    if not _hub_url(given.source) and is_model_folder(Path(given.source)):
        return add_folder(given, console)
    _report(console, *add_model(given, console))
    return 0


def add_model(given: Namespace, console: Console) -> tuple[Path, Entry]:
    """Add a model's files, from this machine or the Hub; return its folder and entry. Raises ConchError."""
    url = _hub_url(given.source)
    hub = hub_downloader() if url else None
    location = hub.parse_location(url) if hub is not None else None
    name = given.name or (location.name if location is not None else name_of(Path(given.source)))
    check_name(name)
    target = Path(given.repository, name)
    _check_target(target, force=given.force)  # before gigabytes are fetched
    source = Path(given.source)
    if hub is not None:
        source = _fetched(hub, location, given.source, console)
    else:
        _refuse_repository(source)
    entry = entry_of(source, EntryOptions(given.backend, given.input, given.output, given.max_batch_size))
    if given.link and source.resolve().is_relative_to(target.resolve()):
        raise InvalidRequest(f"'{source}' is in '{target}', which would be replaced: --link is not possible")
    copy = link if given.link else _link_hard if hub is not None else shutil.copyfile
    with atomic_replace(target, replace=given.force) as folder:
        size = sum(path.stat().st_size for path in entry.files.values())
        with console.status(f"writing {target.name}, {decimal(size)}", spinner=spinner_of(console)):
            write_entry(folder, entry, lambda path, target: copy(path.resolve(), target))
        _check(folder, {str(folder / FIRST_VERSION / name): str(path) for name, path in entry.files.items()})
    return target, entry


def _refuse_repository(source: Path) -> None:
    """Raise InvalidRequest if a folder contains models' folders."""
    if not source.is_dir():
        return
    models = sorted(path.name for path in source.iterdir() if not path.name.startswith(".") and is_model_folder(path))
    if models:
        raise InvalidRequest(
            f"'{source}' is a repository, not a model: serve all of it with conch serve --model-repository={source}, "
            f"or add one of its models: {', '.join(str(source / name) for name in models[:_MAX_NAMES])}"
            + (" …" if len(models) > _MAX_NAMES else "")
        )


def _hub_url(source: str) -> str:
    """Return the URL of a model on the Hub, also for `org/name` if no such path exists; "" for a path."""
    if source.startswith(_HUB):
        return source
    is_repo = _HUB_REPO.fullmatch(source) and not source.lower().endswith(SINGLE_FILES)
    return _HUB + source if is_repo and not Path(source).exists() else ""


def _fetched(hub: ModuleType, location: Any, source: str, console: Console) -> Path:
    try:
        fetched: Path = hub.fetch(location, lambda text: console.print(folded(text, console.file), markup=False))
    except ConchError as error:
        if source.startswith(_HUB):
            raise
        # A source without hf:// may have been meant as a path.
        raise Unavailable(
            f"there is no file or folder '{source}', and {_HUB}{source} failed: {error.message}"
        ) from error
    return fetched


def add_folder(given: Namespace, console: Console) -> int:
    """Add a model's folder of another repository, with all of its versions; return 0. Raises ConchError."""
    source = Path(given.source).absolute()
    if given.backend or given.input or given.output:
        raise InvalidRequest(
            f"'{source}' is a model's folder, whose config.pbtxt has the backend, inputs and outputs: remove "
            "--backend, --input and --output"
        )
    name = given.name or source.name
    check_name(name)
    target = Path(given.repository, name)
    _check_target(target, force=given.force)
    if source.is_relative_to(target.absolute()) or target.absolute().is_relative_to(source):
        raise InvalidRequest(f"'{source}' cannot be added to itself")
    copy = link if given.link else shutil.copyfile
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
    with atomic_replace(target, replace=given.force) as folder:
        for version in source.iterdir():
            if version.is_dir() and version.name.isdecimal():  # an ensemble's version folder may be empty
                (folder / version.name).mkdir()
        for path in files:
            place = folder / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy(path.resolve(), place)
        if given.name and given.name != source.name:
            _rename(folder / _CONFIG)
        _check(folder, {str(folder): str(source)}, ignored=_RULES_FOR_STEPS)
    _list(console, target)
    for finding in check_paths([target]).findings:  # again, now beside the other models of the repository
        if finding.rule_id in _RULES_FOR_STEPS:
            console.print(f"note: {finding.message}", markup=False)
    console.print(f"serve:  conch serve --model-repository={target.parent}", markup=False)
    return 0


def hub_downloader() -> ModuleType:
    """Import the Hub downloader. Raises Unavailable if its package is not installed."""
    try:
        return import_module("conch.clients.repository.hub_download")
    except ModuleNotFoundError as missing:
        if missing.name != "huggingface_hub":
            raise
        raise Unavailable(
            f"hf:// needs the package 'huggingface_hub': {install_command('hub')}; or download the files and add their "
            "path"
        ) from None


def _check_target(target: Path, *, force: bool) -> None:
    if target.name.startswith("."):
        raise InvalidRequest(f"model name '{target.name}' begins with a dot: servers ignore such folders")
    if os.path.lexists(target) and not force:
        raise ConfigError(f"'{target}' exists already: --force replaces it, --name sets another name")


def _link_hard(path: Path, target: Path) -> None:
    """Create a hard link to a file of the Hub's cache, which never changes, or else a copy."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _rename(config: Path) -> None:
    """Remove the name from a copied configuration, so that the folder's name counts."""
    if config.is_file():
        text = config.read_text(encoding="utf-8")
        if config.is_symlink():
            config.unlink()  # the original keeps its name
        config.write_text(_NAME_FIELD.sub("", text, count=1), encoding="utf-8")


def _check(folder: Path, sources: Mapping[str, str], ignored: Collection[str] = ()) -> None:
    """Raise ConfigError if `conch check` finds an error in the written model.

    `sources` maps written paths, which are removed after an error, to the paths that the message names instead.
    """
    for finding in check_paths([folder]).findings:
        if finding.rule.severity is Severity.ERROR and finding.rule_id not in ignored:
            message = finding.message
            for written, source in sources.items():
                message = message.replace(written, source)
            raise ConfigError(message)


def _list(console: Console, target: Path) -> None:
    for path in sorted(path for path in target.rglob("*") if path.is_file()):
        console.print(f"{decimal(path.stat().st_size):>10}  {path}", markup=False)


def _report(console: Console, target: Path, entry: Entry) -> None:
    _list(console, target)
    notes = [*entry.notes]
    if find_spec(_PACKAGES[entry.backend]) is None:
        remedy = _ELSEWHERE.get(entry.backend) or install_command(entry.backend.replace("_", "-"))
        notes.insert(0, f"backend {entry.backend} needs {remedy}")
    for note in notes:
        console.print(f"note: {note}", markup=False)
    console.print(f"serve:  conch serve --model-repository={target.parent}", markup=False)
    if entry.generates:
        console.print(f"chat:   conch chat --model {target.name}", markup=False)
