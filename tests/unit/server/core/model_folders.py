"""Model repositories in temporary folders, and a server core that serves them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from conch.server.backends.registry import BackendRegistry
from conch.server.core.catalog import Catalog, IndexEntry
from conch.server.core.inference import Inference
from conch.server.core.loading.builder import ModelBuilder
from conch.server.core.loading.model_manager import ModelManager
from conch.server.options.server_options import ServerOptions
from conch.server.repository.namespaces import Repositories
from conch.server.repository.store import Repository
from tests.unit.server.core.scripted import Caller, request

TENSOR = '{ name: "%s" data_type: TYPE_FP32 dims: [ 2 ] }'


def write(root: Path, name: str, *versions: int, extra: str = "", dims: int = 2) -> None:
    for version in versions or (1,):
        (root / name / str(version)).mkdir(parents=True, exist_ok=True)
    tensor = f"data_type: TYPE_FP32 dims: [ {dims} ]"
    (root / name / "config.pbtxt").write_text(
        f'backend: "identity" input {{ name: "IN" {tensor} }} output {{ name: "OUT" {tensor} }} {extra}'
    )


def write_ensemble(root: Path, name: str, *steps: str) -> None:
    (root / name / "1").mkdir(parents=True)
    names = ["IN", *(f"t{i}" for i in range(len(steps) - 1)), "OUT"]
    texts = [
        f'step {{ model_name: "{step}" model_version: -1 input_map {{ key: "IN" value: "{names[i]}" }} '
        f'output_map {{ key: "OUT" value: "{names[i + 1]}" }} }}'
        for i, step in enumerate(steps)
    ]
    (root / name / "config.pbtxt").write_text(
        f'platform: "ensemble" input {TENSOR % "IN"} output {TENSOR % "OUT"} '
        f"ensemble_scheduling {{ {' '.join(texts)} }}"
    )


@asynccontextmanager
async def serving(
    root: Path, *, explicit: bool = True, load_retries: int = 0
) -> AsyncIterator[tuple[ModelManager, Inference]]:
    backends = BackendRegistry()
    catalog = Catalog()
    inference = Inference(catalog, strict_readiness=True, started=lambda: True)
    mode = "explicit" if explicit else "none"
    options = ServerOptions(model_control_mode=mode, model_load_retry_count=load_retries)
    builder = ModelBuilder(options, backends, catalog)
    control = ModelManager(options, Repositories([Repository([root])]), builder, catalog)
    yield control, inference
    await control.stop()
    await backends.stop()


async def ask(inference: Inference, name: str) -> object:
    caller = Caller()
    done = asyncio.Event()

    def respond(answer: object, final: bool) -> None:
        caller(answer, final)
        done.set()

    inference.infer(inference.model(name, None), request(name=name), respond)
    await done.wait()
    return caller.answer


async def until(control: ModelManager, entry: IndexEntry) -> None:
    while entry not in control.index(ready_only=False):
        await asyncio.sleep(0.001)
