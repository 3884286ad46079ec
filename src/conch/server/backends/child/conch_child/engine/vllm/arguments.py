"""Read vLLM models' files: `model.json`, the engine's arguments, and `multi_lora.json`, the LoRA adapters."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ..driver import Refused
from ..model_json import adapter_paths, read_json

_MAX_SUGGESTIONS = 5
# Arguments that may be paths, relative to model.json.
_PATHS = ("model", "tokenizer")


def read_arguments(directory: Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's arguments. `defaults` has those of the installed vLLM.

    Raises Refused for an unknown argument and a missing model.
    """
    path = directory / "model.json"
    arguments = read_json(path)
    if "disable_log_requests" in arguments and "disable_log_requests" not in defaults:  # of vLLM before 0.10
        arguments.setdefault("enable_log_requests", not _switch(arguments.pop("disable_log_requests")))
    for name, value in arguments.items():
        if name not in defaults:
            raise Refused(f"{path}: unknown key '{name}'; known: {_suggestions(name, defaults)}")
        if isinstance(defaults[name], bool):
            arguments[name] = _switch(value)
    if not isinstance(arguments.get("model"), str):
        raise Refused(
            f"{path}: needs 'model': a folder beside {path.name}, an absolute path, or a name on the Hugging Face hub"
        )
    for name in _PATHS:
        if name in arguments:
            arguments[name] = _located(path, name, arguments[name])
    return arguments


def read_adapters(directory: Path) -> dict[str, Path]:
    """Return the folders of the LoRA adapters by name. Raises Refused for a missing one."""
    return adapter_paths(
        directory, lambda folder: "" if (folder / "adapter_config.json").is_file() else "has no adapter_config.json"
    )


def _suggestions(name: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(name, known, _MAX_SUGGESTIONS, 0.3) or sorted(known)[:_MAX_SUGGESTIONS]
    return f"{', '.join(near)} and {len(known) - len(near)} other arguments of vLLM's AsyncEngineArgs"


def _switch(value: Any) -> Any:
    """Convert "true" and "false" in any case, as repositories made for Triton have them, to booleans."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


def _located(path: Path, name: str, value: str) -> str:
    local = Path(path.parent, value)  # an absolute path is that path
    if local.exists():
        return str(local)
    if value.startswith((".", "/")):
        raise Refused(f"{path}: {name} '{value}': there is no '{local}'")
    return value
