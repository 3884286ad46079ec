"""Loads of ensembles: their steps, cycles, and changes of the models of steps."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from conch.base.errors import ConchError, ModelLoadError, NotFound, Unavailable
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferResponse
from conch.server.core.catalog import IndexEntry
from conch.server.core.loading.builder import Built, ModelBuilder
from conch.server.repository.store import ModelFiles
from tests.unit.server.core.model_folders import ask, serving, until, write, write_ensemble
from tests.unit.server.core.scripted import Caller, request


async def test_steps_are_loaded_and_unloaded_with_the_ensemble(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    write_ensemble(tmp_path, "e", "a", "b")
    async with serving(tmp_path) as (control, inference):
        await control.load("e", None, {})
        assert {row.name for row in control.index(ready_only=True)} == {"a", "b", "e"}
        assert not isinstance(await ask(inference, "e"), ConchError)
        await control.unload("e", unload_dependents=True)
        for name in "abe":
            await until(control, IndexEntry(name, "1", "UNAVAILABLE", "unloaded"))


async def test_steps_that_were_loaded_by_name_stay_loaded(tmp_path: Path) -> None:
    """As in Triton: `unload_dependents` unloads what the load of the ensemble has loaded."""
    for name in "abc":
        write(tmp_path, name)
    write_ensemble(tmp_path, "e", "a", "b")
    write_ensemble(tmp_path, "outer", "e", "c")
    async with serving(tmp_path) as (control, _):
        await control.load("a", None, {})
        await control.load("e", None, {})
        await control.load("outer", None, {})
        await control.unload("outer", unload_dependents=True)
        assert {row.name for row in control.index(ready_only=True)} == {"a", "b", "e"}
        await control.unload("e", unload_dependents=True)
        assert {row.name for row in control.index(ready_only=True)} == {"a"}


async def test_steps_that_are_loaded_by_name_at_start_stay_loaded(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path, name)
    write_ensemble(tmp_path, "e", "a", "b")
    async with serving(tmp_path) as (control, _):
        await control.load_at_start(["e", "a"])
        await control.unload("e", unload_dependents=True)
        assert {row.name for row in control.index(ready_only=True)} == {"a"}


async def test_missing_step_fails_the_load(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a", "gone")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError, match="contains models that are not available or ambiguous: gone"):
            await control.load("e", None, {})


async def test_invalid_graph_is_reported_with_its_file(tmp_path: Path) -> None:
    write_ensemble(tmp_path, "e", "a", "a")
    config = tmp_path / "e" / "config.pbtxt"
    config.write_text(config.read_text().replace('key: "IN" value: "IN"', 'key: "IN" value: "t0"'))
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError) as raised:
            await control.load("e", None, {})
        assert "' is not used: no step has it in its input_map" in raised.value.message
        assert raised.value.message.endswith(f"({config})")


async def test_cycle_of_ensembles_is_rejected(tmp_path: Path) -> None:
    write_ensemble(tmp_path, "e", "f")
    write_ensemble(tmp_path, "f", "e")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError, match=r"between ensembles: f -> \.\.\. -> e -> f: a load .* f → e → f"):
            await asyncio.wait_for(control.load("e", None, {}), 60)


async def test_reload_that_closes_a_cycle_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a")
    write_ensemble(tmp_path, "f", "e")
    async with serving(tmp_path) as (control, inference):
        await control.load("f", None, {})
        config = tmp_path / "e" / "config.pbtxt"
        for step in ("f", "e"):
            config.write_text(config.read_text().replace('model_name: "a"', f'model_name: "{step}"'))
            with pytest.raises(
                ModelLoadError, match=f"circular dependency between ensembles: step 0 of ensemble 'e', model '{step}'"
            ):
                await control.load("e", None, {})
            config.write_text(config.read_text().replace(f'model_name: "{step}"', 'model_name: "a"'))
        assert not isinstance(await ask(inference, "f"), ConchError)


async def test_concurrent_loads_of_a_cycle_do_not_deadlock(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "f")
    write_ensemble(tmp_path, "f", "g")
    write_ensemble(tmp_path, "g", "e")
    write_ensemble(tmp_path, "fine", "a")
    async with serving(tmp_path) as (control, _):
        await asyncio.wait_for(control.load_at_start(["*"]), 60)
        assert {row.name for row in control.index(ready_only=True)} == {"a", "fine"}


async def test_reload_of_a_step_with_another_shape_makes_the_ensemble_not_ready(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a")
    async with serving(tmp_path) as (control, inference):
        await control.load("e", None, {})
        write(tmp_path, "a", dims=3)
        await control.load("a", None, {})
        with pytest.raises(Unavailable, match="ensemble tensor IN: inconsistent shape"):
            inference.infer(inference.model("e", None), request(name="e"), Caller())
        assert not await inference.model_ready("e", None)
        write(tmp_path, "a", dims=2)
        await control.load("a", None, {})
        assert await inference.model_ready("e", None)


async def test_missing_steps_are_reported_with_their_causes(tmp_path: Path) -> None:
    write(tmp_path, "broken", extra="parameters { key: ")
    write_ensemble(tmp_path, "e", "broken", "gone")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError) as caught:
            await control.load("e", None, {})
    message = caught.value.message
    assert "contains models that are not available or ambiguous: broken, gone; step 0: model 'broken' " in message
    assert "step 1: Request for unknown model: 'gone' is not found" in message
    assert str(tmp_path / "e" / "config.pbtxt") in message


@pytest.mark.parametrize("version", [9, -2])
async def test_steps_without_the_required_version(tmp_path: Path, version: int) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a")
    config = tmp_path / "e" / "config.pbtxt"
    config.write_text(config.read_text().replace("model_version: -1", f"model_version: {version}"))
    async with serving(tmp_path) as (control, _):
        expected = f"ensemble 'e' depends on 'a' whose required version {version} is not loaded."
        with pytest.raises(ModelLoadError, match=expected):
            await control.load("e", None, {})


async def test_steps_that_failed_to_load(tmp_path: Path) -> None:
    write(tmp_path, "a", extra="version_policy { specific { versions: [7] } }")
    write_ensemble(tmp_path, "e", "a")
    async with serving(tmp_path) as (control, _):
        expected = r"ensemble 'e' depends on 'a' which has no loaded version\. Model 'a' loading failed with error: .*7"
        with pytest.raises(ModelLoadError, match=expected.replace("7", "at least one version must be available")):
            await control.load("e", None, {})


async def test_decoupled_step_makes_the_ensemble_decoupled(tmp_path: Path) -> None:
    write(tmp_path, "a", extra="model_transaction_policy { decoupled: true }")
    write_ensemble(tmp_path, "e", "a")
    write_ensemble(tmp_path, "outer", "e")
    async with serving(tmp_path) as (control, inference):
        await control.load("outer", None, {})
        for name in ("e", "outer"):
            config = inference.model(name, None).config
            assert config.decoupled
            assert config.document["model_transaction_policy"] == {"decoupled": True}
        write(tmp_path, "a")
        await control.load("a", None, {})
        with pytest.raises(Unavailable, match="other steps are decoupled than when it was loaded"):
            await ask(inference, "e")
        for name in ("e", "outer"):
            await control.load(name, None, {})
            assert not inference.model(name, None).config.decoupled
        assert not isinstance(await ask(inference, "outer"), ConchError)


async def test_unloading_a_step_leaves_the_server_ready(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a")
    async with serving(tmp_path) as (control, inference):
        await control.load("e", None, {})
        assert inference.ready()
        await control.unload("a", unload_dependents=False)
        assert inference.ready()
        assert not await inference.model_ready("e", None)
        with pytest.raises(
            NotFound, match=r"^in ensemble 'e', Request for unknown model: 'a' has no available versions"
        ):
            await ask(inference, "e")
        await control.load("a", None, {})
        assert not isinstance(await ask(inference, "e"), ConchError)
        write(tmp_path, "a", dims=3)
        await control.load("a", None, {})
        assert not inference.ready()  # its step does not fit any more


async def test_only_a_decoupled_step_makes_an_ensemble_decoupled(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "plain", "a")
    write_ensemble(tmp_path, "claims", "a")
    config = (tmp_path / "claims" / "config.pbtxt").read_text()
    (tmp_path / "claims" / "config.pbtxt").write_text(config + " model_transaction_policy { decoupled: true }")
    async with serving(tmp_path) as (control, inference):
        for name in ("plain", "claims"):
            await control.load(name, None, {})
            served = inference.model(name, None).config
            assert not served.decoupled
            assert served.document["model_transaction_policy"] == {"decoupled": False}


async def test_decoupled_step_excludes_the_response_cache(tmp_path: Path) -> None:
    write(tmp_path, "a", extra="model_transaction_policy { decoupled: true }")
    write_ensemble(tmp_path, "e", "a")
    file = tmp_path / "e" / "config.pbtxt"
    file.write_text(file.read_text() + " response_cache { enable: true }")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError, match="Response Cache does not currently support model e"):
            await control.load("e", None, {})


async def slow_ensemble(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Pause the load of ensemble "e" after its steps are loaded, from the first event to the second."""
    begun, resume = asyncio.Event(), asyncio.Event()
    build = ModelBuilder.build

    async def built(self: ModelBuilder, files: ModelFiles, config: ModelConfig, *more: Any) -> Built:
        if config.name == "e":
            begun.set()
            await resume.wait()
        return await build(self, files, config, *more)

    monkeypatch.setattr(ModelBuilder, "build", built)
    return begun, resume


async def test_unload_of_a_step_waits_for_the_load_of_its_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        write(tmp_path, name)
    write_ensemble(tmp_path, "e", "a", "b")
    begun, resume = await slow_ensemble(monkeypatch)
    async with serving(tmp_path) as (control, inference):
        await control.load("c", None, {})
        load = asyncio.ensure_future(control.load("e", None, {}))
        await begun.wait()
        unload = asyncio.ensure_future(control.unload("a", unload_dependents=False))
        await control.unload("c", unload_dependents=False)  # which has no part in it
        for _ in range(20):
            await asyncio.sleep(0)
        assert not unload.done()
        assert isinstance(await ask(inference, "a"), InferResponse)
        resume.set()
        await load
        await unload
        assert not await inference.model_ready("e", None)
        await until(control, IndexEntry("a", "1", "UNAVAILABLE", "unloaded"))
        await control.load("a", None, {})
        assert isinstance(await ask(inference, "e"), InferResponse)


async def test_unload_dependents_keeps_steps_of_an_ensemble_that_is_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write(tmp_path, name)
    write_ensemble(tmp_path, "e", "a", "b")
    write_ensemble(tmp_path, "f", "a")
    begun, resume = await slow_ensemble(monkeypatch)
    async with serving(tmp_path) as (control, inference):
        await control.load("f", None, {})
        load = asyncio.ensure_future(control.load("e", None, {}))
        await begun.wait()
        unload = asyncio.ensure_future(control.unload("f", unload_dependents=True))
        for _ in range(20):
            await asyncio.sleep(0)
        resume.set()
        await asyncio.gather(load, unload)
        assert isinstance(await ask(inference, "e"), InferResponse)


async def test_reload_of_a_step_during_the_load_of_its_ensemble_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a")
    build = ModelBuilder.build
    begun, resume = asyncio.Event(), asyncio.Event()

    async def built(self: ModelBuilder, files: ModelFiles, config: ModelConfig, *more: Any) -> Built:
        done = await build(self, files, config, *more)
        if config.name == "e":
            begun.set()
            await resume.wait()
        return done

    monkeypatch.setattr(ModelBuilder, "build", built)
    async with serving(tmp_path) as (control, inference):
        load = asyncio.ensure_future(control.load("e", None, {}))
        await begun.wait()
        write(tmp_path, "a", dims=3)
        await control.load("a", None, {})
        resume.set()
        await load
        assert not await inference.model_ready("e", None)


async def test_concurrent_loads_and_unloads_of_ensembles_and_steps_end(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path, name)
    for name, steps in {"e": "ab", "f": "ba", "g": "ec"}.items():
        write_ensemble(tmp_path, name, *steps)
    async with serving(tmp_path) as (control, inference):
        for _ in range(5):
            orders = [control.load(name, None, {}) for name in "efg"]
            orders += [control.unload(name, unload_dependents=name == "g") for name in "abcg"]
            orders += [control.load(name, None, {}) for name in "abc"]
            await asyncio.wait_for(asyncio.gather(*orders, return_exceptions=True), 30)
        await control.load("g", None, {})
        assert isinstance(await ask(inference, "g"), InferResponse)
