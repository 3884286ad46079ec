"""`backend: "pytorch"`: TorchScript, exported programs, compiled packages, and code.

TorchScript runs in the server's process, in one thread per instance. Python and machine code of a model runs in one
process per instance, like models of the python backend, so that it cannot hold the server's GIL or crash the server.
"""

import asyncio
import json
import runpy
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from conch.base.errors import ConfigError, ModelLoadError
from conch.domain.model_config import InstanceKind
from conch.domain.tensor import BYTES
from conch.machine.cores import usable_cores
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.bls import ModelCalls
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.python.backend import PythonBackend
from conch.server.backends.python.model_code import Adapter
from conch.server.backends.pytorch.archive import Format, exported_signature, open_archive
from conch.server.backends.pytorch.files import (
    MODEL_FILE,
    check_exported,
    check_file,
    code_path,
    file_path,
    input_names,
    is_code,
)
from conch.server.backends.pytorch.naming import input_places, output_places
from conch.server.backends.pytorch.settings import parse_settings
from conch.server.backends.signature import needs_completion
from conch.server.observability.metrics.custom import MetricSample

if TYPE_CHECKING:
    from conch.server.backends.pytorch.torch_script import SharedByProcess

_ADAPTER = "conch_child.python.adapters.torch_model"


def _folder_of_torch() -> Path:
    """Return where torch is. Raises ModuleNotFoundError.

    It is imported only for TorchScript: it takes 2 s and 150 MB, and other models run in processes that import it.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    return Path(spec.origin).parent


_TORCH = _folder_of_torch()


class PyTorchBackend(Backend):
    """PyTorch models of every kind."""

    name = "pytorch"
    default_model_filename = MODEL_FILE

    def __init__(self, fork_server: ForkServer | None = None, calls: ModelCalls | None = None) -> None:
        """Make the backend; the arguments are those of the python backend, for models that run in processes."""
        self._python = PythonBackend(fork_server, calls)
        self._lock = Lock()  # for the threads of several loads
        self._shared: SharedByProcess | None = None

    @cached_property
    def can_use_gpus(self) -> bool:
        """Whether the server's PyTorch is built for GPUs: `torch.version`, read without the rest of it."""
        built_with = runpy.run_path(str(_TORCH / "version.py"))
        return any(built_with.get(name) for name in ("cuda", "hip"))

    async def stop(self) -> None:
        await self._python.stop()

    async def complete(self, source: ModelSource) -> Mapping[str, Any]:
        """Add inputs, outputs and batching from an exported program. Raises ConfigError for models of other formats."""
        document = source.config.document
        if not needs_completion(document):
            return document
        return await asyncio.to_thread(check_file, source, partial(_arguments, source.config.name))

    def instance(self, plan: InstancePlan) -> Instance:
        """Make an instance. Raises ModelLoadError with the remedy if the file is missing or cannot be loaded."""
        source = plan.source
        if not is_code(source):
            archive = open_archive(file_path(source))
            if archive.format is Format.TORCHSCRIPT:
                return self._torch_script(plan, archive.path)
        return self._python.instance(plan, partial(_adapter, plan))

    def custom_metrics(self) -> Sequence[MetricSample]:
        return self._python.custom_metrics()

    def _torch_script(self, plan: InstancePlan, path: Path) -> Instance:
        from conch.server.backends.pytorch.torch_script import SharedByProcess, TorchScriptInstance

        with self._lock:
            self._shared = self._shared or SharedByProcess()
        return TorchScriptInstance(plan, path, self._shared)


backend = PyTorchBackend


def _arguments(model: str, path: Path) -> Sequence[str]:
    from conch.server.backends.pytorch.torch_script import read_arguments

    try:
        return read_arguments(path)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelLoadError(f"failed to load model '{model}': {reason} ('{path}')") from error


def _adapter(plan: InstancePlan) -> Adapter:
    """Return the module that runs the model and its arguments. Raises ModelLoadError or ConfigError."""
    source, config = plan.source, plan.source.config
    settings = parse_settings(source)
    for spec in (*config.inputs, *config.outputs):
        if spec.datatype == BYTES:
            raise ConfigError(f"model '{config.name}': '{spec.name}' is TYPE_STRING, which only TorchScript can take")
    names = input_names(config)
    state = ""
    if is_code(source):
        kind, path = "module", code_path(source)
        # By order, as in Triton.
        places = {name: place for place, name in enumerate(names)}
        if path.with_suffix(".pt").is_file():
            state = str(path.with_suffix(".pt"))
    else:
        archive = open_archive(file_path(source))
        kind, path = archive.format.name.lower(), archive.path
        if archive.format is Format.EXPORTED:
            signature = exported_signature(archive)
            places = input_places(config.name, names, [info.name for info in signature.inputs])
            check_exported(config, signature, places)
        else:
            places = input_places(config.name, names)
    task = {
        "format": kind,
        "path": str(path),
        "state": state,
        "device": {InstanceKind.GPU: f"cuda:{plan.device_id}", InstanceKind.MODEL: ""}.get(plan.kind, "cpu"),
        "inputs": sorted(names, key=lambda name: places[name]),
        "outputs": output_places(config.name, [spec.name for spec in config.outputs]),
        "inference_mode": settings.inference_mode,
        "intra_op": settings.intra_op_threads or max(1, usable_cores() // plan.siblings),
        "inter_op": settings.inter_op_threads,
        "compile": settings.compile_options,
    }
    return Adapter(_ADAPTER, {"torch": json.dumps(task)})
