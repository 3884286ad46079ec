"""The settings of `--backend-config` by backend, to name those that have no effect."""

from collections.abc import Iterable, Iterator

from conch.base.suggestion import closest
from conch.server.backends.openvino.options import SETTINGS as OPENVINO
from conch.server.backends.processes.sandbox import SETTINGS as SANDBOX
from conch.server.backends.python.settings import SETTINGS as PYTHON

_BATCH = ("default-max-batch-size",)
_ENGINE = ("env-path", "stub-timeout-seconds", *SANDBOX)
_SETTINGS: dict[str, tuple[str, ...]] = {
    "fil": _BATCH,
    "identity": (),
    "onnxruntime": (*_BATCH, "intra_op_thread_count", "inter_op_thread_count", "measure_threads"),
    "openvino": (*_BATCH, *OPENVINO),
    "openvino_genai": _ENGINE,
    "python": (*PYTHON, *SANDBOX),
    "pytorch": (*_BATCH, *PYTHON, *SANDBOX),
    "scripted": _ENGINE,
    "tensorrt": (),
    "tensorrtllm": _ENGINE,
    "vllm": _ENGINE,
}
_ENVIRONMENT = (
    "the parameter EXECUTION_ENV_PATH in the config.pbtxt of a Python model names its environment; "
    "env-path is a setting of engines"
)


def unknown_settings(settings: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a notice for each setting (backend, key) that no built-in backend reads; Triton ignores those silently.

    The backend "" stands for all. Settings of backends of other packages are unknown here, and pass.
    """
    every = sorted({key for keys in _SETTINGS.values() for key in keys})
    for backend, key in dict.fromkeys(settings):
        known = every if not backend else _SETTINGS.get(backend)
        if known is None or key in known:
            continue
        flag = f"--backend-config={backend},{key}" if backend else f"--backend-config={key}"
        owner = f"backend '{backend}' has no setting '{key}'" if backend else f"no backend has a setting '{key}'"
        yield f"{flag} has no effect: {owner}{_remedy(backend, key, known)}"


def _remedy(backend: str, key: str, known: Iterable[str]) -> str:
    if key == "env-path" and backend in ("python", "pytorch"):
        return f"; {_ENVIRONMENT}"
    names = {name.lower().replace("_", "-"): name for name in known}
    match = closest(key.lower().replace("_", "-"), names)
    meant = f"; did you mean '{names[match]}'?" if match else ""
    return f"{meant or ';'} it has: {', '.join(sorted(known))}" if names and backend else meant
