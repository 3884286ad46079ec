"""Options of an OpenVINO GenAI model, from its files, `model.json` and the machine's memory."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Iterator

from .. import cache_size, messages
from ..cache_size import GIB
from ..driver import DamagedModel, Log, Refused
from ..model_json import adapter_paths, read_json

_MAX_SEQUENCES = 256
_GGUF_HEAD = b"GGUF"
_LFS_HEAD = b"version https://git-lfs"
# Files that the library reads beside openvino_model.xml.
_IR_FILES = ("openvino_model.bin", "openvino_tokenizer.xml", "openvino_tokenizer.bin", "openvino_detokenizer.xml")
_DEFAULT_CONTEXT_TOKENS = 4096

# Keys of model.json → types. Names are the library's; max_model_len is vLLM's.
_SCHEDULER: dict[str, tuple[type, ...]] = {
    "cache_size": (int,),  # GiB
    "num_kv_blocks": (int,),
    "max_num_batched_tokens": (int,),
    "max_num_seqs": (int,),
    "enable_prefix_caching": (bool,),
    "dynamic_split_fuse": (bool,),
    "use_cache_eviction": (bool,),
}
_OTHERS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "device": (str,),
    "max_model_len": (int,),
    "draft_model": (str,),
    "num_assistant_tokens": (int,),
    "prompt_lookup": (bool,),
    "max_ngram_size": (int,),
    "properties": (dict,),
}


@dataclass
class Options:
    """A model's options, complete."""

    model: Path
    device: str
    context_length: int
    scheduler: dict[str, Any]
    properties: dict[str, Any] = field(default_factory=dict)
    adapters: dict[str, Path] = field(default_factory=dict)
    draft_model: Path | None = None
    prompt_lookup: bool = False
    # Fields of each request's `GenerationConfig`.
    speculation: dict[str, Any] = field(default_factory=dict)


def read_options(options: dict[str, Any], log: Log) -> Options:
    """Read `model.json` and `multi_lora.json` of the version's directory; both may be missing. Raises Refused."""
    directory = Path(options["directory"])
    given = read_json(directory / "model.json")
    known = {**_SCHEDULER, **_OTHERS}
    for name, value in given.items():
        if name not in known:
            raise Refused(f"{directory / 'model.json'}: unknown key '{name}'; known: {', '.join(sorted(known))}")
        if not isinstance(value, known[name]) or (isinstance(value, bool) and bool not in known[name]):
            types = " or ".join(kind.__name__ for kind in known[name])
            raise Refused(f"{directory / 'model.json'}: '{name}' must be {types}, got {json.dumps(value)}")
    model = _model(directory, given.get("model", ""))
    limit = _trained_context(model)
    context = given.get("max_model_len", limit or _DEFAULT_CONTEXT_TOKENS)
    if limit and context > limit:
        raise Refused(f"{directory / 'model.json'}: max_model_len {context} exceeds the model's {limit}")
    scheduler = {"max_num_seqs": _MAX_SEQUENCES, "enable_prefix_caching": True, "dynamic_split_fuse": True}
    scheduler.update({name: given[name] for name in _SCHEDULER if name in given})
    weights = sum(path.stat().st_size for path in ([model] if model.is_file() else model.glob("*.bin")))
    if {"cache_size", "num_kv_blocks"} & scheduler.keys():
        cache_size.check_fit(options["memory"], weights, scheduler.get("cache_size", 0) * GIB)
    else:
        size, why = cache_size.default_size(options["memory"], weights, GIB)
        scheduler["cache_size"] = size // GIB  # the library takes whole GiB
        log(messages.INFO, f"KV cache of {size // GIB} GiB: {why}; set cache_size in model.json to change it")
    speculation: dict[str, Any] = {
        name: given[name] for name in ("num_assistant_tokens", "max_ngram_size") if name in given
    }
    draft = directory / given["draft_model"] if "draft_model" in given else None
    if (draft is not None or given.get("prompt_lookup")) and "num_assistant_tokens" not in speculation:
        speculation["num_assistant_tokens"] = 5
    if given.get("prompt_lookup") and "max_ngram_size" not in speculation:
        speculation["max_ngram_size"] = 3
    if draft is not None and not (draft / "openvino_model.xml").is_file():
        raise Refused(
            f"{directory / 'model.json'}: 'draft_model' must be a folder with an IR, '{draft}' "
            "has no openvino_model.xml"
        )
    adapters = _adapters(directory, model, given, scheduler)
    return Options(
        model=model,
        device=given.get("device", "CPU"),
        context_length=context,
        scheduler=scheduler,
        properties=given.get("properties", {}),
        adapters=adapters,
        draft_model=draft,
        prompt_lookup=given.get("prompt_lookup", False),
        speculation=speculation,
    )


def _adapters(directory: Path, model: Path, given: dict[str, Any], scheduler: dict[str, Any]) -> dict[str, Path]:
    """Return the LoRA adapters' files by name, and disable prefix caching if there are any."""
    adapters = adapter_paths(directory, lambda path: "" if path.is_file() else "is not a file")
    listed = directory / "multi_lora.json"
    if adapters:
        if not model.is_dir():
            raise Refused(
                f"{listed}: LoRA adapters need a model in OpenVINO's IR; the layers of '{model.name}' have no names"
            )
        if given.get("enable_prefix_caching"):
            raise Refused(
                f"{listed}: LoRA adapters and enable_prefix_caching exclude each other: the library would reuse cache "
                "entries of one adapter for another"
            )
        scheduler["enable_prefix_caching"] = False
    return adapters


def _model(directory: Path, named: str) -> Path:
    """Return the GGUF file or the folder with an IR."""
    if named:
        path = directory / named
        if not path.exists():
            raise Refused(f"{directory / 'model.json'}: 'model' is not at '{path}'")
        return path
    if (directory / "openvino_model.xml").is_file():
        if missing := [name for name in _IR_FILES if not (directory / name).is_file()]:
            raise DamagedModel(
                f"{directory}: the model is incomplete, {', '.join(missing)} is missing; "
                "`optimum-cli export openvino` writes all files of a model into one folder"
            )
        return directory
    files = sorted(directory.glob("*.gguf"))
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise Refused(
            f"no model in '{directory}': it must hold openvino_model.xml with its tokenizer, or one .gguf file "
            f"(found: {names}), or a model.json whose 'model' names their path"
        )
    return files[0]


def _trained_context(model: Path) -> int:
    """Return the context length that the model was trained with, in tokens; 0 if unknown."""
    if model.is_dir():
        config = read_json(model / "config.json")
        return int(config.get("max_position_embeddings") or config.get("n_positions") or 0)
    with model.open("rb") as file:
        head = file.read(len(_LFS_HEAD))
    if not head.startswith(_GGUF_HEAD):
        pointer = "; it is a Git LFS pointer: run `git lfs pull`" if head == _LFS_HEAD else ""
        raise DamagedModel(f"{model}: not a GGUF file, or damaged: it begins with {head[:4]!r}, not b'GGUF'{pointer}")
    from gguf import GGUFReader

    try:
        for name, entry in GGUFReader(model).fields.items():
            if name.endswith(".context_length"):
                return int(entry.contents())
    except Exception as error:  # the type depends on where the file is damaged
        cause = f"{type(error).__name__}: {error}"
        raise DamagedModel(
            f"{model}: the GGUF file is damaged or incomplete ({cause}); copy or convert it again"
        ) from error
    return 0


@contextmanager
def writable_model(model: Path, log: Log) -> Iterator[Path]:
    """Yield a GGUF file that this user may write: a temporary copy of one on a read-only mount, else the file itself.

    The copy is removed at the end: the library reads the file while it creates the pipeline, and not later.
    """
    if not read_only_remedy(model):
        yield model
        return
    with TemporaryDirectory(prefix="conch-gguf-") as folder:
        try:
            copied = shutil.copyfile(model, Path(folder) / model.name)
        except OSError as error:
            log(messages.WARNING, f"no copy of the read-only '{model}' can be made in '{folder}': {error.strerror}")
            copied = model
        else:
            log(messages.INFO, f"copied '{model}' to '{folder}' for the load: OpenVINO GenAI opens it for writing")
        yield copied


def read_only_remedy(path: Path) -> str:
    """Return a remedy to append to an error if a GGUF file is read-only for this user, else ""."""
    if path.suffix.lower() != ".gguf" or os.access(path, os.W_OK):
        return ""
    return (
        f"; it opens GGUF files for writing, though it changes nothing, and user {os.getuid()} may not write this one: "
        "make it writable for that user, or convert the model to IR"
    )
