"""Check language models: the arguments of their engines, their weights, and whether their chat templates compile.

No model is loaded. The code of the engine process reads the engine's arguments, as far as that is possible without the
engine's packages.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError
from conch.check.finding import Finding, Place, Severity
from conch.check.models.checked_model import CheckedModel
from conch.check.models.config import named_gpus
from conch.check.models.framework_files import check_readable
from conch.check.source import SourceFile
from conch.domain.config.resolve import resolve
from conch.domain.files.gguf_file import NotGguf, read_gguf
from conch.domain.files.model_folder import read_json_object
from conch.domain.files.safetensors_file import NotSafetensors, read_safetensors
from conch.domain.llm.chat_prompt import ChatTemplate
from conch.domain.llm.text_model import is_pooling
from conch.server.backends.child.conch_child.engine.driver import DamagedModel, Refused
from conch.server.backends.child.conch_child.engine.model_json import read_json
from conch.server.backends.child.conch_child.engine.openvino_genai import options as openvino_options
from conch.server.backends.child.conch_child.engine.scripted.driver import ScriptedDriver
from conch.server.backends.child.conch_child.engine.tensorrtllm import arguments as tensorrtllm_arguments
from conch.server.backends.child.conch_child.engine.vllm import arguments as vllm_arguments
from conch.server.backends.engines.tensors import engine_document
from conch.server.backends.tensorrtllm import refuse_parameters

# Types of tensors that OpenVINO GenAI's reader of GGUF knows.
_GGUF_TYPES = frozenset({"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"})
# A check is independent of this machine's memory: whether a model fits is decided when it is loaded.
_UNLIMITED_MEMORY: dict[str, Any] = {"free": 1 << 60, "capacity": 1 << 60, "promised": {}, "gpu_shares": {}}
# Errors about a path that does not exist, from the readers of `model.json` and `multi_lora.json`.
_ELSEWHERE = re.compile(r"(?:there is no|is not at|folder with an IR,) '(/[^']+)'")
_AT = re.compile(r"line (\d+) column (\d+)")
_WEIGHTS_INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 64 << 20


def check_language_model(model: CheckedModel, versions: Sequence[int]) -> tuple[CheckedModel, list[Finding]]:
    """Check versions of a model of a backend in `ENGINES`; return it with the tensors that the server gives it."""
    if any(is_pooling(model.directory / str(version)) for version in versions):
        message = f"the files of pooling model '{model.name}' were not checked: only a running server can read them"
        return model, [Finding("model-unread", Place(model.directory), message)]
    findings = [finding for version in versions for finding in _version(model, model.directory / str(version))]
    try:
        refuse_parameters(model.name, model.config.parameters if model.config.backend == "tensorrtllm" else {})
        config = resolve(engine_document(model.files.document), backend=None, gpus=named_gpus(model.files)).config
    except ConfigError as error:
        findings.append(Finding("config-invalid", model.folder.locate(error.message), error.message))
    else:
        model = model.completed(config)
    return model, findings


def _version(model: CheckedModel, directory: Path) -> Iterator[Finding]:
    if irregular := [path for path in sorted(directory.iterdir()) if path.exists() and not _is_regular(path)]:
        message = f"{irregular[0].name} of model '{model.name}' is not a regular file"
        yield Finding("file-unreadable", Place(irregular[0]), message)
        return  # an engine's library would wait for a pipe
    findings = [finding for path in sorted(directory.glob("*.gguf")) for finding in _gguf(model, path)]
    broken = [finding for finding in findings if finding.rule.severity is Severity.ERROR]
    yield from (finding for finding in findings if finding not in broken)
    if broken:
        yield from broken
        return
    try:
        weights = ENGINES[model.config.backend](directory)
    except DamagedModel as damaged:
        yield Finding("file-damaged", Place(directory), f"model '{model.name}': {damaged.text}")
    except Refused as refused:
        yield _refused(model, directory, refused.text)
    except ImportError as error:
        message = f"files of model '{model.name}' were not checked: that needs the package '{error.name}'"
        yield Finding("model-unread", Place(directory), message)
    except Exception as error:  # of a library that reads an invalid file
        message = f"the model of '{model.name}' cannot be read: {type(error).__name__}: {error}"
        yield Finding("file-damaged", Place(directory), message)
    else:
        yield from _context(model, directory, weights)
        yield from _weights(model, weights)
        yield from _templates(weights)


def _is_regular(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _gguf(model: CheckedModel, path: Path) -> Iterator[Finding]:
    wrong = list(check_readable(model, path))
    yield from wrong
    if wrong:
        return
    try:
        gguf = read_gguf(path)
    except NotGguf as error:
        message = f"{path.name} of model '{model.name}' is not a GGUF file, or is damaged: {error}"
        yield Finding("file-damaged", Place(path), message)
        return
    if missing := gguf.missing_tensors():
        message = f"{path.name} of model '{model.name}' lacks tensor '{missing[0]}' ({len(missing)} in all)"
        yield Finding("file-damaged", Place(path), message)
    if model.config.backend != "openvino_genai":
        return
    if unknown := sorted(gguf.types.keys() - _GGUF_TYPES):
        message = f"{gguf.types[unknown[0]]} of {len(gguf.tensors)} tensors of {path.name} are in {unknown[0]}"
        yield Finding("quantisation", Place(path), message)
    if not gguf.chat_template:
        yield Finding("chat-template-missing", Place(path), f"{path.name} has no chat template")


def _context(model: CheckedModel, directory: Path, weights: Path) -> Iterator[Finding]:
    """Check the context of a checkpoint for vLLM; the other engines check it themselves."""
    config = read_json_object(weights / "config.json") if model.config.backend == "vllm" else {}
    trained = config.get("max_position_embeddings")
    asked = read_json_object(directory / "model.json").get("max_model_len")
    if isinstance(trained, int) and isinstance(asked, int) and asked > trained and not config.get("rope_scaling"):
        message = f"max_model_len {asked} of model '{model.name}' exceeds the {trained} tokens of its config.json"
        yield Finding("context-length", Place(directory / "model.json"), message)


def _weights(model: CheckedModel, weights: Path) -> Iterator[Finding]:
    for path, problem in safetensors_problems(weights) if weights.is_dir() else ():
        message = f"{path.name} of model '{model.name}' {problem}"
        yield Finding("file-damaged", Place(path), message)


def _refused(model: CheckedModel, directory: Path, text: str) -> Finding:
    """Convert an engine's error to a finding at the file that it names.

    A missing absolute path outside of the model's folder is only a notice: it may exist on the server's machine.
    """
    elsewhere = _ELSEWHERE.search(text)
    if elsewhere and not Path(elsewhere[1]).is_relative_to(directory.parent):
        message = f"model '{model.name}': {elsewhere[1]} does not exist on this machine"
        return Finding("path-elsewhere", Place(directory / "model.json"), message)
    path, separator, rest = text.partition(": ")
    named = Path(path)
    if not separator or named.parent != directory:
        return Finding("engine-arguments", Place(directory), f"model '{model.name}': {text}")
    at = _AT.search(rest)
    place = Place(named, int(at[1]), int(at[2])) if at else Place(named)
    return Finding("engine-arguments", place, f"{named.name} of model '{model.name}': {rest}")


def _templates(weights: Path) -> Iterator[Finding]:
    """Compile the chat templates of a model: a folder in Hugging Face's format, or a GGUF file."""
    for path, source in _template_sources(weights):
        try:
            ChatTemplate(source, {})
        except ConfigError as error:
            yield Finding("chat-template", Place(path), f"{path.name}: {error.message}")
        except (RecursionError, MemoryError):
            yield Finding("chat-template", Place(path), f"{path.name}: the template is nested too deeply")


def _template_sources(weights: Path) -> Iterator[tuple[Path, str]]:
    if weights.suffix == ".gguf":
        template = read_gguf(weights).chat_template
        if template:
            yield weights, template
        return
    alone = SourceFile.read(weights / "chat_template.jinja")
    if alone is not None:
        yield alone.path, alone.text
    path = weights / "tokenizer_config.json"
    named = read_json_object(path).get("chat_template") or ()
    for entry in named if isinstance(named, list) else [{"template": named}]:
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            yield path, entry["template"]


def _openvino_genai(directory: Path) -> Path:
    options = {"directory": str(directory), "memory": _UNLIMITED_MEMORY}
    return openvino_options.read_options(options, lambda _level, _text: None).model


def _vllm(directory: Path) -> Path:
    # The names of arguments depend on vLLM's version, so all are accepted here.
    arguments = vllm_arguments.read_arguments(directory, read_json(directory / "model.json"))
    vllm_arguments.read_adapters(directory)
    return Path(arguments["model"])


def _tensorrtllm(directory: Path) -> Path:
    arguments = tensorrtllm_arguments.read_arguments(directory)
    tensorrtllm_arguments.read_adapters(directory, arguments)
    return Path(arguments["model"])


def _scripted(directory: Path) -> Path:
    ScriptedDriver(lambda _level, _text: None).load({"directory": str(directory)})
    return directory


# Backend → function that reads a version's files as the engine does and returns the model's path. Raises Refused.
ENGINES: dict[str, Callable[[Path], Path]] = {
    "openvino_genai": _openvino_genai,
    "scripted": _scripted,
    "tensorrtllm": _tensorrtllm,
    "vllm": _vllm,
}


def safetensors_problems(directory: Path) -> Iterator[tuple[Path, str]]:
    """Yield the path of a file and what is wrong with it. A folder without safetensors files has no problem."""
    index = directory / _WEIGHTS_INDEX
    listed: dict[str, set[str]] = {}
    if index.is_file() and index.stat().st_size <= _MAX_INDEX_BYTES:
        try:
            for tensor, file in json.loads(index.read_bytes())["weight_map"].items():
                listed.setdefault(str(file), set()).add(tensor)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            yield index, f"cannot be read: {type(error).__name__}: {error}"
            return
    for name in sorted(listed):
        if "\0" in name or not (directory / name).is_file():
            yield index, f"names {name}, which is not in the folder"
    for path in sorted(directory.glob("*.safetensors")):
        try:
            tensors = read_safetensors(path)
        except OSError as error:
            yield path, f"cannot be read: {error.strerror}"
            continue
        except NotSafetensors as error:
            yield path, str(error)
            continue
        if missing := sorted(listed.get(path.name, set()) - tensors.keys()):
            yield path, f"lacks tensor '{missing[0]}' ({len(missing)} in all), which {_WEIGHTS_INDEX} lists"
