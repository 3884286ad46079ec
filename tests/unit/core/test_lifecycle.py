"""Models come and go: the repository on disk on one side, what a client may ask on the other."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conch.backends.registry import BackendRegistry
from conch.core.catalog import Catalog
from conch.core.inference import Inference
from conch.core.loading.builder import Built, ModelBuilder
from conch.core.loading.model_manager import ModelManager
from conch.core.loading.repository_index import IndexEntry
from conch.core.scheduling.scheduled_model import ScheduledModel
from conch.core.served_model import ServedModel
from conch.errors import Code, ConchError, InvalidRequest, ModelLoadError, NotFound, Unavailable
from conch.model_config import ModelConfig
from conch.repository.namespaces import Repositories
from conch.repository.override import Override
from conch.repository.store import ModelFiles, Repository
from conch.request import InferResponse
from tests.unit.core.scripted import Caller, request

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
    builder = ModelBuilder(backends, catalog, settings=lambda name: {})
    control = ModelManager(
        Repositories([Repository([root])]), builder, catalog, explicit=explicit, load_retries=load_retries
    )
    yield control, inference
    await control.stop()
    await backends.stop()


async def ask(inference: Inference, name: str) -> object:
    caller = Caller()
    done = asyncio.Event()

    def respond(answer: object, final: bool) -> None:
        caller(answer, final)
        done.set()

    inference.infer(request(name=name), respond)
    await done.wait()
    return caller.answer


async def until(control: ModelManager, entry: IndexEntry) -> None:
    while entry not in control.index(ready_only=False):
        await asyncio.sleep(0.001)


async def test_the_index_shows_what_was_never_loaded_by_name_only(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    async with serving(tmp_path) as (control, inference):
        await control.load("a", None, {})
        assert control.index(ready_only=False) == [IndexEntry("a", "1", "READY"), IndexEntry("b")]
        assert control.index(ready_only=True) == [IndexEntry("a", "1", "READY")]
        assert inference.ready()


async def test_a_failed_model_leaves_the_others_serving_and_says_why(tmp_path: Path) -> None:
    write(tmp_path, "good")
    write(tmp_path, "bad", extra='parameters { key: "execute_delay_ms" value { string_value: "soon" } }')
    async with serving(tmp_path) as (control, inference):
        await control.load_at_start(["*"])
        assert not isinstance(await ask(inference, "good"), ConchError)
        with pytest.raises(NotFound, match="'bad' has no available versions"):
            await ask(inference, "bad")
        (entry,) = [row for row in control.index(ready_only=False) if row.name == "bad"]
        assert entry.state == "UNAVAILABLE"
        assert "whole number, got 'soon'" in entry.reason
        assert not inference.ready()


async def test_a_load_that_fails_tells_the_client_the_cause(tmp_path: Path) -> None:
    write(tmp_path, "bad", extra='parameters { key: "execute_delay_ms" value { string_value: "soon" } }')
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError, match="load failed for model 'bad': version 1 is at UNAVAILABLE") as caught:
            await control.load("bad", None, {})
        assert caught.value.code is Code.INVALID_ARG


async def test_an_unknown_model_and_an_unreadable_config_name_the_cause(tmp_path: Path) -> None:
    write(tmp_path, "typo", extra="max_batchsize: 3")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(NotFound, match="failed to load 'nope', failed to poll from model repository"):
            await control.load("nope", None, {})
        with pytest.raises(ModelLoadError, match="max_batch_size"):
            await control.load("typo", None, {})


async def test_a_reload_brings_the_new_version_up_before_the_old_goes(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        before = inference.model("m", None)
        caller = Caller()
        inference.infer(request(), caller)
        write(tmp_path, "m", 1, 2)
        await control.load("m", None, {})
        assert inference.model("m", None) is not before
        assert inference.versions("m") == [2]
        await until(control, IndexEntry("m", "1", "UNAVAILABLE", "unloaded"))
        assert not isinstance(caller.answer, ConchError)


async def test_a_reload_of_unchanged_files_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        before = inference.model("m", None)
        await control.load("m", None, {})
        assert inference.model("m", None) is before


async def test_a_reload_that_fails_leaves_the_old_version_serving(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        (tmp_path / "m" / "config.pbtxt").write_text("no such field: 1")
        with pytest.raises(ModelLoadError):
            await control.load("m", None, {})
        assert not isinstance(await ask(inference, "m"), ConchError)
        assert control.index(ready_only=True) == [IndexEntry("m", "1", "READY")]


async def test_an_override_holds_until_the_files_change(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        document = dict(inference.model("m", None).config.document, max_batch_size=4)
        await control.load("m", json.dumps(document), {})
        assert inference.model("m", None).config.max_batch_size == 4
        await control.load("m", None, {})
        assert inference.model("m", None).config.max_batch_size == 4
        write(tmp_path, "m", dims=3)
        await control.load("m", None, {})
        assert inference.model("m", None).config.max_batch_size == 0


async def test_a_broken_override_is_the_clients_mistake(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(InvalidRequest, match="not valid JSON"):
            await control.load("m", "{", {})


async def test_files_of_a_load_need_no_repository_and_vanish_with_it(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        document = dict(inference.model("m", None).config.document, name="guest")
        await control.load("guest", json.dumps(document), {"1/note.txt": b"hello"})
        directory = inference.model("guest", None).instances[0].plan.source.directory
        assert (directory / "1" / "note.txt").read_bytes() == b"hello"
        await control.unload("guest", unload_dependents=False)
        await until(control, IndexEntry("guest", "1", "UNAVAILABLE", "unloaded"))
        assert not directory.exists()


async def test_unload_answers_what_was_admitted(tmp_path: Path) -> None:
    write(tmp_path, "m", extra='parameters { key: "execute_delay_ms" value { string_value: "20" } }')
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        caller = Caller()
        inference.infer(request(), caller)
        await control.unload("m", unload_dependents=False)
        assert IndexEntry("m", "1", "UNLOADING") in control.index(ready_only=False)
        with pytest.raises(NotFound):
            inference.infer(request(), Caller())
        await until(control, IndexEntry("m", "1", "UNAVAILABLE", "unloaded"))
        assert not isinstance(caller.answer, ConchError)
        assert inference.ready()  # what was unloaded on purpose does not count


async def test_unloading_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as (control, _):
        await control.unload("nope", unload_dependents=False)


async def test_clients_may_load_only_in_explicit_mode(tmp_path: Path) -> None:
    async with serving(tmp_path, explicit=False) as (control, _):
        with pytest.raises(Unavailable, match="explicit model load / unload is not allowed"):
            await control.load("m", None, {})
        with pytest.raises(Unavailable):
            await control.unload("m", unload_dependents=False)


async def test_an_ensemble_brings_its_steps_and_takes_them_along(tmp_path: Path) -> None:
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


async def test_an_ensemble_without_one_of_its_steps_is_not_ready_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a", "gone")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError, match="contains models that are not available or ambiguous: gone"):
            await control.load("e", None, {})


async def test_a_graph_that_is_wrong_in_itself_names_its_file(tmp_path: Path) -> None:
    write_ensemble(tmp_path, "e", "a", "a")
    config = tmp_path / "e" / "config.pbtxt"
    config.write_text(config.read_text().replace('key: "IN" value: "IN"', 'key: "IN" value: "t0"'))
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError) as raised:
            await control.load("e", None, {})
        assert "is not used: no step has it in its input_map" in raised.value.message
        assert raised.value.message.endswith(f"({config})")


async def test_a_circle_of_ensembles_is_refused(tmp_path: Path) -> None:
    write_ensemble(tmp_path, "e", "f")
    write_ensemble(tmp_path, "f", "e")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError, match="circular dependency: a load would wait for itself: f → e → f"):
            await asyncio.wait_for(control.load("e", None, {}), 5)


async def test_a_reload_cannot_close_a_circle_of_ensembles(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a")
    write_ensemble(tmp_path, "f", "e")
    async with serving(tmp_path) as (control, inference):
        await control.load("f", None, {})
        config = tmp_path / "e" / "config.pbtxt"
        for step in ("f", "e"):
            config.write_text(config.read_text().replace('model_name: "a"', f'model_name: "{step}"'))
            with pytest.raises(ModelLoadError, match=f"circular dependency: step 0 of ensemble 'e', model '{step}'"):
                await control.load("e", None, {})
            config.write_text(config.read_text().replace(f'model_name: "{step}"', 'model_name: "a"'))
        assert not isinstance(await ask(inference, "f"), ConchError)


async def test_circles_of_ensembles_that_are_loaded_side_by_side_do_not_wait_for_each_other(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "f")
    write_ensemble(tmp_path, "f", "g")
    write_ensemble(tmp_path, "g", "e")
    write_ensemble(tmp_path, "fine", "a")
    async with serving(tmp_path) as (control, _):
        await asyncio.wait_for(control.load_at_start(["*"]), 5)
        assert {row.name for row in control.index(ready_only=True)} == {"a", "fine"}


async def test_a_load_whose_files_change_meanwhile_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        meanwhile = ModelBuilder.configure
        changes = iter([4, 5])

        async def configure(self: ModelBuilder, files: ModelFiles) -> ModelConfig:
            for size in changes:
                write(tmp_path, "m", extra=f"max_batch_size: {size}")
                break
            return await meanwhile(self, files)

        monkeypatch.setattr(ModelBuilder, "configure", configure)
        await control.load("m", None, {})
        assert inference.model("m", None).config.max_batch_size == 5


async def test_a_model_whose_files_never_keep_still_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, _):
        sizes = count(1)
        monkeypatch.setattr(Repository, "fingerprint", lambda self, name: ((f"{name}/config.pbtxt", next(sizes), 1),))
        with pytest.raises(ModelLoadError, match="'m' kept changing while it was being loaded"):
            await control.load("m", None, {})
        (row,) = control.index(ready_only=False)
        assert (row.state, "kept changing" in row.reason) == ("UNAVAILABLE", True)


async def test_an_unexpected_failure_of_one_model_does_not_end_the_polling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Repository.read

    def fragile(self: Repository, name: str, override: Override | None = None) -> ModelFiles:
        if name == "bad":
            raise RuntimeError("boom")
        return read(self, name, override)

    monkeypatch.setattr(Repository, "read", fragile)
    async with serving(tmp_path, explicit=False) as (control, _):
        await control.load_at_start(["*"])
        polling = asyncio.create_task(control.poll(0.01))
        for name in ("bad", "good"):
            write(tmp_path, name)
            await asyncio.sleep(0.05)
        await until(control, IndexEntry("good", "1", "READY"))
        polling.cancel()


async def test_an_ensemble_whose_step_is_reloaded_with_another_shape_is_not_ready(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a")
    async with serving(tmp_path) as (control, inference):
        await control.load("e", None, {})
        write(tmp_path, "a", dims=3)
        await control.load("a", None, {})
        with pytest.raises(Unavailable, match="tensor 'IN' does not fit"):
            inference.infer(request(name="e"), Caller())
        assert not await inference.model_ready("e", None)
        write(tmp_path, "a", dims=2)
        await control.load("a", None, {})
        assert await inference.model_ready("e", None)


async def test_polling_follows_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "a")
    async with serving(tmp_path, explicit=False) as (control, inference):
        await control.load_at_start(["*"])
        polling = asyncio.create_task(control.poll(0.01))
        await asyncio.sleep(0)
        write(tmp_path, "b")
        await until(control, IndexEntry("b", "1", "READY"))
        (tmp_path / "b" / "config.pbtxt").write_text("broken")
        write(tmp_path, "c")
        await until(control, IndexEntry("c", "1", "READY"))
        assert not isinstance(await ask(inference, "b"), ConchError)
        for path in sorted((tmp_path / "c").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (tmp_path / "c").rmdir()
        while any(row.name == "c" for row in control.index(ready_only=False)):
            await asyncio.sleep(0.01)
        polling.cancel()


async def test_loads_of_one_model_follow_each_other(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await asyncio.gather(*(control.load("m", None, {}) for _ in range(5)))
        assert inference.versions("m") == [1]


async def test_an_ensemble_tells_why_a_step_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, "broken", extra="parameters { key: ")
    write_ensemble(tmp_path, "e", "broken", "gone")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError) as caught:
            await control.load("e", None, {})
    message = caught.value.message
    assert "contains models that are not available or ambiguous: broken, gone; step 0: model 'broken' " in message
    assert "step 1: Request for unknown model: 'gone' is not found" in message
    assert str(tmp_path / "e" / "config.pbtxt") in message


async def test_an_ensemble_is_decoupled_by_its_steps_and_follows_them(tmp_path: Path) -> None:
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
        with pytest.raises(Unavailable, match="other steps of it are decoupled than when it was loaded"):
            await ask(inference, "e")
        for name in ("e", "outer"):
            await control.load(name, None, {})
            assert not inference.model(name, None).config.decoupled
        assert not isinstance(await ask(inference, "outer"), ConchError)


async def test_an_ensemble_that_is_decoupled_by_a_step_has_no_cache(tmp_path: Path) -> None:
    write(tmp_path, "a", extra="model_transaction_policy { decoupled: true }")
    write_ensemble(tmp_path, "e", "a")
    file = tmp_path / "e" / "config.pbtxt"
    file.write_text(file.read_text() + " response_cache { enable: true }")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError, match="Response Cache does not currently support model e"):
            await control.load("e", None, {})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(orders=st.lists(st.sampled_from(["load", "unload", "override", "broken"]), min_size=1, max_size=8))
def test_of_loads_and_unloads_at_once_the_last_counts(tmp_path: Path, orders: list[str]) -> None:
    write(tmp_path, "m")
    asyncio.run(_order_at_once(tmp_path, orders))


async def _order_at_once(root: Path, orders: list[str]) -> None:
    async with serving(root) as (control, inference):
        await control.load("m", None, {})
        plain = json.dumps(inference.model("m", None).config.document)
        expected = "load"
        calls = []
        for number, order in enumerate(orders):
            if order == "unload":
                calls.append(control.unload("m", unload_dependents=False))
                expected = ""
            elif order == "override":
                document = {**json.loads(plain), "parameters": {"mark": {"string_value": str(number)}}}
                calls.append(control.load("m", json.dumps(document), {}))
                expected = str(number)
            elif order == "broken":  # what was served before is served on
                calls.append(control.load("m", '{ "name": "other" }', {}))
            else:  # nothing has changed: what is served is served on
                calls.append(control.load("m", None, {}))
                expected = expected or "load"
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)
        for order, result in zip(orders, results, strict=True):
            assert isinstance(result, InvalidRequest) if order == "broken" else result is None
        if not expected:
            await asyncio.wait_for(until(control, IndexEntry("m", "1", "UNAVAILABLE", "unloaded")), 20)
            return
        assert control.index(ready_only=False) == [IndexEntry("m", "1", "READY", "")]
        assert inference.model("m", None).config.parameters.get("mark", "load") == expected
        assert not isinstance(await ask(inference, "m"), ConchError)


@pytest.mark.parametrize(("retries", "served"), [(0, False), (1, False), (2, True)])
async def test_a_load_that_fails_is_tried_again_as_often_as_the_flag_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retries: int, served: bool
) -> None:
    write(tmp_path, "m")
    attempts = count(1)
    build = ModelBuilder.build

    async def fails_twice(
        builder: ModelBuilder, files: ModelFiles, config: ModelConfig, unchanged: Mapping[int, ServedModel]
    ) -> Built:
        if next(attempts) <= 2:
            raise ModelLoadError("not yet")
        return await build(builder, files, config, unchanged)

    monkeypatch.setattr(ModelBuilder, "build", fails_twice)
    async with serving(tmp_path, load_retries=retries) as (control, _):
        if served:
            await control.load("m", None, {})
        else:
            with pytest.raises(ModelLoadError, match="not yet"):
                await control.load("m", None, {})
        assert [row.state for row in control.index(ready_only=False)] == ["READY" if served else "UNAVAILABLE"]


async def test_versions_come_one_by_one_and_a_failing_one_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "m", 1, 2, extra="version_policy { all { } }")
    start = ScheduledModel.start

    async def second_fails(model: ScheduledModel) -> None:
        if model.version == 2:
            raise ModelLoadError("no")
        await start(model)

    async with serving(tmp_path) as (control, inference):
        with monkeypatch.context() as patch:
            patch.setattr(ScheduledModel, "start", second_fails)
            with pytest.raises(ModelLoadError, match=r"version 2 is at UNAVAILABLE state: .*: no;"):
                await control.load("m", None, {})
        assert inference.versions("m") == [1]
        write(tmp_path, "m", 3, extra="version_policy { all { } }")
        await control.load("m", None, {})
        assert inference.versions("m") == [1, 2, 3]
        (tmp_path / "m" / "1").rmdir()
        await control.load("m", None, {})
        assert inference.versions("m") == [2, 3]
        assert IndexEntry("m", "1", "UNAVAILABLE", "unloaded") in control.index(ready_only=False)


async def slow_ensemble(monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Have the load of ensemble "e" stand still when its steps are there, from the first event to the second."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    build = ModelBuilder.build

    async def built(self: ModelBuilder, files: ModelFiles, config: ModelConfig, *more: Any) -> Built:
        if config.name == "e":
            begun.set()
            await go_on.wait()
        return await build(self, files, config, *more)

    monkeypatch.setattr(ModelBuilder, "build", built)
    return begun, go_on


async def test_unloading_a_step_waits_for_the_load_of_its_ensemble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        write(tmp_path, name)
    write_ensemble(tmp_path, "e", "a", "b")
    begun, go_on = await slow_ensemble(monkeypatch)
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
        go_on.set()
        await load
        await unload
        assert not await inference.model_ready("e", None)
        await until(control, IndexEntry("a", "1", "UNAVAILABLE", "unloaded"))
        await control.load("a", None, {})
        assert isinstance(await ask(inference, "e"), InferResponse)


async def test_unloading_an_ensemble_with_its_steps_leaves_those_of_one_that_is_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        write(tmp_path, name)
    write_ensemble(tmp_path, "e", "a", "b")
    write_ensemble(tmp_path, "f", "a")
    begun, go_on = await slow_ensemble(monkeypatch)
    async with serving(tmp_path) as (control, inference):
        await control.load("f", None, {})
        load = asyncio.ensure_future(control.load("e", None, {}))
        await begun.wait()
        unload = asyncio.ensure_future(control.unload("f", unload_dependents=True))
        for _ in range(20):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(load, unload)
        assert isinstance(await ask(inference, "e"), InferResponse)


async def test_a_step_that_is_reloaded_while_its_ensemble_is_loaded_is_held_against_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a")
    write_ensemble(tmp_path, "e", "a")
    build = ModelBuilder.build
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def built(self: ModelBuilder, files: ModelFiles, config: ModelConfig, *more: Any) -> Built:
        done = await build(self, files, config, *more)
        if config.name == "e":
            begun.set()
            await go_on.wait()
        return done

    monkeypatch.setattr(ModelBuilder, "build", built)
    async with serving(tmp_path) as (control, inference):
        load = asyncio.ensure_future(control.load("e", None, {}))
        await begun.wait()
        write(tmp_path, "a", dims=3)
        await control.load("a", None, {})
        go_on.set()
        await load
        assert not await inference.model_ready("e", None)


async def test_loads_and_unloads_of_an_ensemble_and_its_steps_at_once_all_end(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["../m", "a/b", "", ".", "x" * 300, "nope"])
async def test_a_name_that_no_model_can_have_leaves_nothing_in_the_index(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as (control, inference):
        with pytest.raises(ConchError, match="failed to load"):
            await control.load(name, None, {})
        assert control.index(ready_only=False) == []
        assert inference.ready()


async def test_names_that_were_uploaded_do_not_stay_in_the_index(tmp_path: Path) -> None:
    write(tmp_path, "a")
    config = (
        '{"backend": "identity", "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}], '
        '"output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}]}'
    )
    async with serving(tmp_path) as (control, _):
        control._uploaded._most = 3
        for number in range(8):
            await control.load(f"served{number}", config, {"1/x": b""})
            await control.unload(f"served{number}", unload_dependents=False)
            await control.retired(f"served{number}")
            with pytest.raises(ConchError):
                await control.load(f"failed{number}", config.replace("identity", "no_such"), {"1/x": b""})
        await control.load("a", None, {})
        names = {row.name for row in control.index(ready_only=False)}
    assert names == {"a", "failed6", "served7", "failed7"}
