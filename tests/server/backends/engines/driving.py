"""Run engines without a server, and record the deltas and ends of their requests."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conch.base.errors import ConchError
from conch.domain.generation import Delta, Generation, GenerationRequest, SamplingParams, Usage
from conch.domain.model_config import ModelConfig
from conch.server.backends.base import ModelSource
from conch.server.backends.engines.backend import EngineBackend
from conch.server.backends.engines.base import Engine
from conch.server.backends.registry import load_backend


@dataclass
class Recorded:
    """The deltas and ends that a request's callback received."""

    deltas: list[Delta] = field(default_factory=list)
    ends: list[Usage | ConchError] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    generation: Generation | None = None
    abort_at_first: bool = False  # within the call that brings the first deltas: a later one may bring the end

    def on_deltas(self, deltas: Any, end: Usage | ConchError | None) -> None:
        self.deltas += deltas
        if self.abort_at_first and not self.begun.is_set() and end is None:
            assert self.generation is not None
            self.generation.abort()
        self.begun.set()
        if end is not None:
            self.ends.append(end)
            self.ended.set()

    @property
    def end(self) -> Usage | ConchError:
        (end,) = self.ends
        return end

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas if delta.index == index)

    def tokens(self, index: int = 0) -> list[int]:
        return [token for delta in self.deltas if delta.index == index for token in delta.token_ids]

    def finish(self, index: int = 0) -> str | None:
        reasons = [delta.finish_reason for delta in self.deltas if delta.index == index and delta.finish_reason]
        assert len(reasons) <= 1
        return reasons[0].value if reasons else None


def begin(
    engine: Engine,
    prompt: str | list[int],
    *,
    adapter: str = "",
    priority: int = 0,
    client: str = "",
    prompt_only: bool = False,
    **params: Any,
) -> Recorded:
    """Start a request."""
    got = Recorded()
    request = GenerationRequest(
        id="1",
        model_name="m",
        prompt=prompt,
        params=SamplingParams(**params),
        adapter=adapter,
        priority=priority,
        client=client,
        prompt_only=prompt_only,
    )
    got.generation = engine.generate(request, got.on_deltas)
    return got


async def ask(engine: Engine, prompt: str | list[int], **params: Any) -> Recorded:
    """Start a request and wait for its end."""
    got = begin(engine, prompt, **params)
    await asyncio.wait_for(got.ended.wait(), 60)
    return got


@asynccontextmanager
async def running(
    backend: str, version_directory: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Engine]:
    """Run the engine of a model whose version's directory this is, `settings` being those of --backend-config."""
    config = ModelConfig(name="m", backend=backend, platform="", max_batch_size=0, inputs=(), outputs=())
    made = load_backend(backend, {})
    assert isinstance(made, EngineBackend)
    engine = made.engine(ModelSource(config, 1, version_directory.parent, settings or {}))
    engine.on_ready_change = lambda: None
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def family(pid: int) -> list[int]:
    """Return a process and all that it and those have started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for thread in threads for child in thread.read_text().split()]
    return [pid, *(process_id for child in children for process_id in family(child))]


async def gone(paths: Sequence[Path]) -> None:
    """Return when there is none of these any more; processes are folders of /proc."""
    async with asyncio.timeout(60):
        while any(path.exists() for path in paths):
            await asyncio.sleep(0.01)
