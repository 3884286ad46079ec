"""Find what `conch run X` is asked to serve, and present it as a model repository without copying large files."""

import os
from argparse import Namespace
from ast import PyCF_ONLY_AST
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conch.base.errors import InvalidRequest, NotFound
from conch.base.suggestion import did_you_mean
from conch.clients.run.model_store import HUB, model_store, pulled
from conch.domain.files.model_folder import is_model_name
from conch.domain.llm.text_model import is_pooling
from conch.server.repository.model_entry import EntryOptions, entry_of, link, write_entry
from conch.server.repository.model_kinds import is_model_folder, name_of
from conch.server.repository.python_app import PythonAppRoot, is_python_app
from conch.server.repository.store import ModelFiles, Repository, check_name
from conch.server.repository.temporary_folders import TemporaryFolders

REMOTE = ("oci://", "s3://", "gs://", "as://", "http://", "https://")
# Options that make a configuration, and what has them otherwise.
_INSTANCES, _ENTRY = ("instances",), ("backend", "input", "output", "max_batch_size")
_CONFIGURED = "the model's config.pbtxt"
_LANGUAGE_BACKENDS = ("openvino_genai", "vllm", "tensorrtllm", "scripted")
_TRITON_CLASS = b"class TritonPythonModel"


@dataclass(frozen=True, slots=True)
class RunSource:
    """A repository, and the flags of `conch serve` that name it."""

    flags: tuple[str, ...]
    repository: Repository
    text: str  # as the user wrote it
    links: TemporaryFolders | None = None  # which remove the links at the end of this process
    takes_instances: bool = False  # whether --instances says how many there are
    folder: Path | None = None  # the repository that has the links

    def models(self) -> list[ModelFiles]:
        """Return the models; a remote repository is fetched for that. Raises ConchError if one cannot be read."""
        names = sorted(self.repository.snapshot())  # a remote repository has names only after a scan
        if not names:
            raise NotFound(f"there are no models in {self.text}")
        return [self.repository.read(name) for name in names]

    def with_linked_paths(self, message: str) -> str:
        """Return a message with the files of the user in place of the links to them."""
        if self.folder and str(self.folder) in message:
            for path in filter(Path.is_symlink, self.folder.rglob("*")):
                message = message.replace(str(path), str(path.readlink()))
        return message


def chats(files: ModelFiles) -> bool:
    """Whether a model is a language model, by its backend and model.json."""
    versions = (files.directory / str(version) for version in files.versions_on_disk)
    return files.config.backend in _LANGUAGE_BACKENDS and not any(map(is_pooling, versions))


def find_source(given: Namespace) -> RunSource:
    """Return the repository of what the arguments name. Downloads models of the Hub. Raises ConchError."""
    try:
        return _find(given)
    except OSError as error:
        raise InvalidRequest(f"'{error.filename or given.model}' cannot be read: {error.strerror}") from None


def _find(given: Namespace) -> RunSource:
    text: str = given.model
    path = Path(text)
    if text.startswith(REMOTE):
        _refuse_unused(given, _CONFIGURED)
        _refuse_unused(given, "conch pull, which takes it", ("name",))
        from conch.server.repository.roots import open_root

        return RunSource((f"--model-repository={text}",), Repository([open_root(text, "")]), text)
    if text.startswith(HUB):
        _refuse_unused(given, _CONFIGURED, _INSTANCES)
        return _of_model_folder(pulled(text, given), text)
    if path.is_dir():
        return _of_folder(path, given)
    if path.exists():
        return _of_file(path, given)
    stored = model_store() / text
    if text and "/" not in text and is_model_folder(stored):
        _refuse_unused(given, _CONFIGURED)
        return _of_model_folder(stored, text, given.name)
    raise NotFound(_nothing_there(text))


def _nothing_there(text: str) -> str:
    if Path(text).is_symlink():
        return f"'{text}' is a symbolic link to '{Path(text).readlink()}', which is missing or leads back to it"
    near = [entry.name for entry in Path(text).absolute().parent.glob("[!.]*")]
    stored = [folder.name for folder in model_store().glob("*")]
    hint = did_you_mean(Path(text).name, sorted({*near, *stored}))
    hub = f"; a model of the Hugging Face Hub is {HUB}{text}" if text.count("/") == 1 else ""
    return f"'{text}' is not a file, a folder or a pulled model{hint or f'; conch ls lists the models on disk{hub}'}"


def _of_folder(folder: Path, given: Namespace) -> RunSource:
    if is_model_folder(folder):
        _refuse_unused(given, _CONFIGURED)
        return _of_model_folder(folder, str(folder), given.name)
    if _is_repository(folder):
        _refuse_unused(given, _CONFIGURED, (*_INSTANCES, *_ENTRY, "name"))
        return RunSource((f"--model-repository={folder}",), Repository([folder]), str(folder))
    try:
        return _linked(folder, given)
    except InvalidRequest as error:
        readable = (entry for entry in _folders(folder) if os.access(entry, os.R_OK))
        inside = next((entry for entry in readable if any(map(_is_model, _folders(entry)))), None)
        if inside is None:
            raise
        raise InvalidRequest(f"{error.message}; '{inside}' is a model repository") from None


def _is_repository(folder: Path) -> bool:
    """Whether a folder has a model, or only folders that are meant as models: others can be a whole disk."""
    folders = _folders(folder)
    return any(map(_is_model, folders)) or (bool(folders) and all(map(_looks_like_model, folders)))


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder that can be models."""
    return sorted(entry for entry in folder.iterdir() if is_model_name(entry.name) and entry.is_dir())


def _is_model(folder: Path) -> bool:
    """Whether a folder has a configuration, or a model's file in a version folder."""
    return any(os.access(path, os.R_OK) for path in (folder / "config.pbtxt", *folder.glob("[0-9]*/model.*")))


def _looks_like_model(folder: Path) -> bool:
    return os.access(folder, os.R_OK) and is_model_folder(folder)


def _of_model_folder(folder: Path, text: str, name: str = "") -> RunSource:
    from conch.server.repository.model_dir import ModelDirRoot

    flags = (f"--model-dir={folder}", *([f"--model-name={name}"] if name else []))
    return RunSource(flags, Repository([ModelDirRoot(folder, name)]), text)


def with_steps(folder: Path, given: Namespace) -> RunSource:
    """Return a new repository with links to an ensemble and the models of its steps, which lie beside it.

    Raises NotFound if some do not, and InvalidRequest for --name.
    """
    text: str = given.model
    if given.name:
        raise InvalidRequest(f"'{text}' is an ensemble, which keeps its name: --name has no effect")
    folder = folder.resolve()
    beside = Repository([folder.parent])
    names, missing = [folder.name], list[str]()
    for name in names:  # grows
        try:
            files = beside.read(name)
        except NotFound:
            missing.append(name)
            continue
        files.discard()
        names += dict.fromkeys(step.model_name for step in files.config.ensemble_steps if step.model_name not in names)
    if missing:
        plural = "models" if len(missing) > 1 else "a model"
        raise NotFound(
            f"'{text}' is an ensemble with steps of {plural} that {folder.parent} does not have: {', '.join(missing)}"
        )

    def fill(repository: Path) -> None:
        for name in names:
            link(folder.parent / name, repository / name)

    links = TemporaryFolders()
    repository = links.write(folder.name, fill)
    return RunSource((f"--model-repository={repository}",), Repository([repository]), text, links, folder=repository)


def _of_file(path: Path, given: Namespace) -> RunSource:
    if not path.is_file():  # a pipe would be read without an end
        raise InvalidRequest(f"'{path}' is not a regular file")
    if path.suffix != ".py":
        return _linked(path, given)
    if is_python_app(path):
        _refuse_unused(given, "the arguments of @conch.model", (*_INSTANCES, *_ENTRY, "name"))
        return RunSource((f"--model-repository={path}",), Repository([PythonAppRoot(path.absolute())]), str(path))
    text = path.read_bytes()
    try:
        compile(text, path, "exec", PyCF_ONLY_AST)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise InvalidRequest(f"'{path}' is not valid Python{where}: {getattr(error, 'msg', error)}") from None
    if _TRITON_CLASS not in text:
        raise InvalidRequest(
            f"'{path}' has no model: expected functions or classes with @conch.model, or a class "
            "TritonPythonModel with the method execute(requests)"
        )
    folder = path.absolute().parent.parent
    if path.parent.name.isdecimal() and is_model_folder(folder):  # with the configuration that belongs to it
        _refuse_unused(given, _CONFIGURED)
        return _of_model_folder(folder, str(path), given.name)
    return _linked_python(path, given)


def _linked(path: Path, given: Namespace) -> RunSource:
    """Return a new repository with links to the files of one model."""
    options = EntryOptions(
        given.backend, given.input, given.output, given.max_batch_size, allow_pickles=given.allow_pickled_models
    )
    entry = entry_of(path, options)
    if given.instances:
        entry = replace(entry, config=f"{entry.config}{_instance_group(given)}")
    return _new_repository(given, path, lambda folder: write_entry(folder, entry, link))


def _linked_python(path: Path, given: Namespace) -> RunSource:
    _refuse_unused(given, "the method auto_complete_config", _ENTRY)

    def fill(folder: Path) -> None:
        (folder / "1").mkdir()
        link(path.absolute(), folder / "1" / "model.py")
        if given.instances:
            (folder / "config.pbtxt").write_text(f'backend: "python"\n{_instance_group(given)}')

    return _new_repository(given, path, fill)


def _refuse_unused(given: Namespace, instead: str, names: Sequence[str] = (*_INSTANCES, *_ENTRY)) -> None:
    """Refuse options that have no effect, because the model says `instead` what they would."""
    unused = [f"--{name.replace('_', '-')}" for name in names if getattr(given, name)]
    if unused:
        plural = "s have" if len(unused) > 1 else " has"
        raise InvalidRequest(f"'{given.model}': the option{plural} no effect ({', '.join(unused)}); use {instead}")


def _instance_group(given: Namespace) -> str:
    return f"instance_group [ {{ count: {given.instances} }} ]\n"


def _new_repository(given: Namespace, path: Path, fill: Callable[[Path], None]) -> RunSource:
    name = given.name or name_of(path)
    check_name(name)
    links = TemporaryFolders()

    def fill_repository(repository: Path) -> None:
        (repository / name).mkdir()
        fill(repository / name)

    repository = links.write(name, fill_repository)
    flags = (f"--model-repository={repository}",)
    return RunSource(flags, Repository([repository]), str(path), links, takes_instances=True, folder=repository)
