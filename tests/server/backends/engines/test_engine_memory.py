"""Memory reservations of engines: alone, and with real engines on a machine that appears to be small."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conch.base.errors import ModelLoadError
from conch.domain.generation import EngineInfo
from conch.domain.model_config import ModelConfig
from conch.machine.memory import free_memory, resident_memory
from conch.server.backends.base import ModelSource
from conch.server.backends.child.conch_child.engine import cache_size
from conch.server.backends.child.conch_child.engine.driver import Refused
from conch.server.backends.engines.base import Engine
from conch.server.backends.engines.memory import EngineMemory
from conch.server.backends.openvino_genai import OpenVinoGenaiBackend
from conch.server.backends.vllm import VllmBackend
from tests.server.backends.engines.driving import ask
from tests.server.backends.engines.gguf_model import write_gguf

GIB = 1 << 30


@dataclass
class Process:
    pid: int
    alive: bool = True


class Machine:
    """So much memory, of which processes take some."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken: dict[int, int] = {}

    @property
    def books(self) -> EngineMemory:
        return EngineMemory(lambda: self.size - sum(self.taken.values()), lambda pid: self.taken.get(pid, 0))


def info(cache: int = 0, **more: Any) -> EngineInfo:
    return EngineInfo(engine="x", context_length=1, max_running=1, kv_cache_bytes=cache, **more)


def test_what_is_promised_is_not_promised_again() -> None:
    machine = Machine(20 * GIB)
    books = machine.books
    first, offer = books.claim("first", Process(1), GIB, None)
    assert offer == {"free": 20 * GIB, "capacity": 20 * GIB, "promised": {}, "gpu_shares": {}}
    # A second one that is loaded meanwhile: the first may come to have its weights and its share.
    second, offer = books.claim("second", Process(2), GIB, None)
    assert offer["promised"] == {"first": 6 * GIB}
    assert offer["free"] == 14 * GIB
    books.release(second)
    machine.taken[1] = GIB
    books.settle(first, info(cache=4 * GIB))
    _, offer = books.claim("second", Process(2), GIB, None)
    assert offer["promised"] == {"first": 4 * GIB}
    assert (offer["free"], offer["capacity"]) == (15 * GIB, 20 * GIB)


def test_a_cache_that_is_being_filled_is_counted_once_and_one_that_is_gone_not_at_all() -> None:
    machine = Machine(20 * GIB)
    books, process = machine.books, Process(1)
    claim, _ = books.claim("one", process, 0, None)
    books.settle(claim, info(cache=4 * GIB))
    machine.taken[1] = 3 * GIB
    _, offer = books.claim("two", Process(2), 0, None)
    assert offer["promised"] == {"one": GIB}
    assert offer["free"] == 16 * GIB
    process.alive = False
    machine.taken.clear()
    _, offer = books.claim("three", Process(3), 0, None)
    assert "one" not in offer["promised"]


def test_a_cache_that_is_stated_counts_as_it_is_while_its_engine_is_loaded() -> None:
    books = Machine(20 * GIB).books
    books.claim("small", Process(1), GIB, GIB)
    _, offer = books.claim("large", Process(2), 0, 15 * GIB)
    assert offer["promised"] == {"small": 2 * GIB}
    cache_size.check_fit(offer, GIB, 15 * GIB)


def test_three_engines_get_the_same_and_later_ones_half_of_the_rest() -> None:
    machine = Machine(32 * GIB)
    books = machine.books
    sizes = []
    for pid in range(1, 6):
        claim, offer = books.claim(str(pid), Process(pid), 0, None)
        size, _ = cache_size.default_size(offer, 0, GIB)
        books.settle(claim, info(cache=size))
        sizes.append(size // GIB)
    assert sizes == [8, 8, 8, 4, 2]


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    offer: Mapping[str, Any] = {"free": 2 * GIB, "capacity": 8 * GIB, "promised": {"a": 3 * GIB}}
    with pytest.raises(Refused) as refused:
        cache_size.default_size(offer, int(1.5 * GIB), GIB)
    assert refused.value.text == (
        "not enough memory: the weights take 1.5 GiB and the KV cache 1.0 GiB at least, and 2.0 GiB are free beside "
        "what is promised: 3.0 GiB to 'a'"
    )


def test_gpu_shares_above_one_are_reported() -> None:
    books = Machine(20 * GIB).books
    claim, _ = books.claim("a", Process(1), 0, None)
    books.settle(claim, info(cache=70 * GIB, kv_cache_taken=True, gpu_memory_share=0.6))
    _, offer = books.claim("b", Process(2), 0, None)
    assert offer["promised"] == {}  # it has what it wants
    assert cache_size.overcommit_warning(offer, 0.4) == ""
    assert "0.5 and that of other models ('a' has 0.6) exceed 1 in total" in cache_size.overcommit_warning(offer, 0.5)


def test_this_process_has_memory() -> None:
    assert resident_memory(os.getpid()) > 1 << 20
    assert resident_memory(2**22 + 1) == 0
    assert free_memory() > 0


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


async def test_real_engines_share_a_small_machine(tmp_path: Path) -> None:
    machine = Machine(9 * GIB)
    backend = OpenVinoGenaiBackend(memory=machine.books)

    def engine(name: str, **options: Any) -> Engine:
        directory = tmp_path / name / "1"
        directory.mkdir(parents=True)
        write_gguf(directory / "model.gguf")
        (directory / "model.json").write_text(json.dumps(options))
        config = ModelConfig(name, "openvino_genai", "", 0, (), ())
        made = backend.engine(ModelSource(config, 1, directory.parent, {}))
        made.on_ready_change = lambda: None
        return made

    first, sized, second = engine("first"), engine("sized", cache_size=4), engine("second")
    try:
        await first.start()
        await sized.start()
        await second.start()
        caches = [engine.info.kv_cache_bytes // GIB for engine in (first, sized, second)]
        assert caches == [2, 4, 1]  # a quarter, the configured size, half of the rest
        assert (await ask(second, "the sun", max_tokens=3, ignore_eos=True)).tokens()
        with pytest.raises(
            ModelLoadError, match=r"KV cache 4.0 GiB at least, and 2.0 GiB are free .* 4.0 GiB to 'sized'"
        ):
            await engine("large", cache_size=4).start()
        await sized.stop()
        again = engine("again", cache_size=4)
        await again.start()  # what was stopped has given back what it was promised
        await again.stop()
    finally:
        for engine in (first, sized, second):
            await engine.stop()


@pytest.mark.parametrize(
    ("space", "options", "size"),
    [("", {}, None), ("2", {}, 2 * GIB), ("2", {"kv_cache_memory_bytes": GIB}, GIB), ("many", {}, 0)],
)
def test_vllms_variable_is_a_configured_size(
    space: str, options: Mapping[str, Any], size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conch.server.backends.vllm._GPU", tmp_path / "missing")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", space)
    assert VllmBackend().cache_bytes(options) == size
