"""Load, reload, unload and poll: the repository on disk and what clients request."""

import asyncio
import json
import shutil
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conch.base.errors import Code, ConchError, InvalidRequest, ModelLoadError, NotFound, Unavailable
from conch.domain.model_config import ModelConfig
from conch.server.core.catalog import IndexEntry
from conch.server.core.loading import model_manager
from conch.server.core.loading.builder import Built, ModelBuilder
from conch.server.core.scheduling.scheduled_model import ScheduledModel
from conch.server.core.served_model import ServedModel
from conch.server.repository.override import Override
from conch.server.repository.store import ModelFiles, Repository
from tests.unit.server.core.model_folders import ask, serving, until, write
from tests.unit.server.core.scripted import Caller, request


async def test_index_has_only_the_name_of_a_model_that_was_never_loaded(tmp_path: Path) -> None:
    write(tmp_path, "a")
    write(tmp_path, "b")
    async with serving(tmp_path) as (control, inference):
        await control.load("a", None, {})
        assert control.index(ready_only=False) == [IndexEntry("a", "1", "READY"), IndexEntry("b")]
        assert control.index(ready_only=True) == [IndexEntry("a", "1", "READY")]
        assert inference.ready()


async def test_failed_load_affects_no_other_model_and_is_reported(tmp_path: Path) -> None:
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


async def test_failed_load_returns_its_cause(tmp_path: Path) -> None:
    write(tmp_path, "bad", extra='parameters { key: "execute_delay_ms" value { string_value: "soon" } }')
    async with serving(tmp_path) as (control, _):
        with pytest.raises(ModelLoadError, match="load failed for model 'bad': version 1 is at UNAVAILABLE") as caught:
            await control.load("bad", None, {})
        assert caught.value.code is Code.INVALID_ARG


async def test_unknown_model_and_invalid_config_are_reported(tmp_path: Path) -> None:
    write(tmp_path, "typo", extra="max_batchsize: 3")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(NotFound, match="failed to load 'nope', failed to poll from model repository"):
            await control.load("nope", None, {})
        with pytest.raises(ModelLoadError, match="max_batch_size"):
            await control.load("typo", None, {})


async def test_reload_starts_the_new_version_before_it_stops_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        before = inference.model("m", None)
        caller = Caller()
        inference.infer(inference.model("m", None), request(), caller)
        write(tmp_path, "m", 1, 2)
        await control.load("m", None, {})
        assert inference.model("m", None) is not before
        assert inference.versions("m") == [2]
        await until(control, IndexEntry("m", "1", "UNAVAILABLE", "unloaded"))
        assert not isinstance(caller.answer, ConchError)


async def test_reload_of_unchanged_files_is_a_no_op(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        before = inference.model("m", None)
        await control.load("m", None, {})
        assert inference.model("m", None) is before


async def test_failed_reload_keeps_the_old_version(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        (tmp_path / "m" / "config.pbtxt").write_text("no such field: 1")
        with pytest.raises(ModelLoadError):
            await control.load("m", None, {})
        assert not isinstance(await ask(inference, "m"), ConchError)
        assert control.index(ready_only=True) == [IndexEntry("m", "1", "READY")]


async def test_override_stays_in_force_until_the_files_change(tmp_path: Path) -> None:
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


async def test_uploaded_files_are_replaced_by_a_load_without_them(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        document = json.dumps(inference.model("m", None).config.document)
        await control.load("m", document, {"7/x": b""})
        assert inference.versions("m") == [7]
        await control.load("m", None, {})
        assert inference.versions("m") == [1]
        # Without a folder in the repository there is nothing to return to.
        await control.load("uploaded", document.replace('"m"', '"uploaded"'), {"7/x": b""})
        with pytest.raises(NotFound, match=r"^failed to load 'uploaded', failed to poll from model repository"):
            await control.load("uploaded", None, {})
        assert inference.versions("uploaded") == [7]


async def test_invalid_override_is_an_invalid_request(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, _):
        with pytest.raises(InvalidRequest, match="not valid JSON"):
            await control.load("m", "{", {})


async def test_uploaded_files_are_removed_by_the_unload(tmp_path: Path) -> None:
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


async def test_unload_answers_admitted_requests(tmp_path: Path) -> None:
    write(tmp_path, "m", extra='parameters { key: "execute_delay_ms" value { string_value: "20" } }')
    async with serving(tmp_path) as (control, inference):
        await control.load("m", None, {})
        caller = Caller()
        inference.infer(inference.model("m", None), request(), caller)
        await control.unload("m", unload_dependents=False)
        assert IndexEntry("m", "1", "UNLOADING") in control.index(ready_only=False)
        with pytest.raises(NotFound):
            inference.infer(inference.model("m", None), request(), Caller())
        await until(control, IndexEntry("m", "1", "UNAVAILABLE", "unloaded"))
        assert not isinstance(caller.answer, ConchError)
        assert inference.ready()  # an unloaded model does not count


async def test_unload_of_an_unknown_model_is_ignored(tmp_path: Path) -> None:
    async with serving(tmp_path) as (control, _):
        await control.unload("nope", unload_dependents=False)


async def test_clients_load_only_in_explicit_mode(tmp_path: Path) -> None:
    async with serving(tmp_path, explicit=False) as (control, _):
        with pytest.raises(Unavailable, match="explicit model load / unload is not allowed"):
            await control.load("m", None, {})
        with pytest.raises(Unavailable):
            await control.unload("m", unload_dependents=False)


async def test_load_restarts_if_the_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_load_fails_if_the_files_keep_changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, _):
        sizes = count(1)
        monkeypatch.setattr(Repository, "fingerprint", lambda self, name: ((f"{name}/config.pbtxt", next(sizes), 1),))
        with pytest.raises(ModelLoadError, match="'m' kept changing while it was being loaded"):
            await control.load("m", None, {})
        (row,) = control.index(ready_only=False)
        assert (row.state, "kept changing" in row.reason) == ("UNAVAILABLE", True)


async def test_unexpected_failure_of_one_model_does_not_stop_polling(
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


async def test_polling_loads_and_unloads(tmp_path: Path) -> None:
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


async def test_loads_of_one_model_are_serialized(tmp_path: Path) -> None:
    write(tmp_path, "m")
    async with serving(tmp_path) as (control, inference):
        await asyncio.gather(*(control.load("m", None, {}) for _ in range(5)))
        assert inference.versions("m") == [1]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(orders=st.lists(st.sampled_from(["load", "unload", "override", "broken"]), min_size=1, max_size=8))
def test_last_of_concurrent_loads_and_unloads_wins(tmp_path: Path, orders: list[str]) -> None:
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
            elif order == "broken":  # the previous version stays in service
                calls.append(control.load("m", '{ "name": "other" }', {}))
            else:  # unchanged: a no-op
                calls.append(control.load("m", None, {}))
                expected = expected or "load"
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        for order, result in zip(orders, results, strict=True):
            assert isinstance(result, InvalidRequest) if order == "broken" else result is None
        if not expected:
            await asyncio.wait_for(until(control, IndexEntry("m", "1", "UNAVAILABLE", "unloaded")), 60)
            return
        assert control.index(ready_only=False) == [IndexEntry("m", "1", "READY", "")]
        assert inference.model("m", None).config.parameters.get("mark", "load") == expected
        assert not isinstance(await ask(inference, "m"), ConchError)


@pytest.mark.parametrize(("retries", "served"), [(0, False), (1, False), (2, True)])
async def test_load_retries_follow_the_flag(
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


async def test_a_failed_version_keeps_all_versions_of_its_load_out_of_service(
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
        unavailable = "Request for unknown model: 'm' has no available versions"
        with pytest.raises(NotFound, match=f"^{unavailable}: version 2 of model 'm' failed to load: Internal: no$"):
            inference.versions("m")
        assert [row.reason for row in control.index(ready_only=False)] == ["unloaded", "Internal: no"]
        write(tmp_path, "m", 3, extra="version_policy { all { } }")
        await control.load("m", None, {})
        assert inference.versions("m") == [1, 2, 3]
        (tmp_path / "m" / "1").rmdir()
        await control.load("m", None, {})
        assert inference.versions("m") == [2, 3]
        assert IndexEntry("m", "1", "UNAVAILABLE", "unloaded") in control.index(ready_only=False)


@pytest.mark.parametrize("name", ["../m", "a/b", "", ".", "x" * 300, "nope"])
async def test_invalid_name_adds_nothing_to_the_index(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as (control, inference):
        with pytest.raises(ConchError, match="failed to load"):
            await control.load(name, None, {})
        assert control.index(ready_only=False) == []
        assert inference.ready()


async def test_index_bounds_uploaded_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_manager, "MAX_UPLOADED_MODELS", 3)
    write(tmp_path, "a")
    config = (
        '{"backend": "identity", "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}], '
        '"output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [1]}]}'
    )
    async with serving(tmp_path) as (control, _):
        for number in range(8):
            await control.load(f"served{number}", config, {"1/x": b""})
            await control.unload(f"served{number}", unload_dependents=False)
            await control.retired(f"served{number}")
            with pytest.raises(ConchError):
                await control.load(f"failed{number}", config.replace("identity", "no_such"), {"1/x": b""})
        await control.load("a", None, {})
        names = {row.name for row in control.index(ready_only=False)}
    assert names == {"a", "failed6", "served7", "failed7"}


async def test_index_bounds_models_that_were_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_manager, "MAX_UPLOADED_MODELS", 3)
    write(tmp_path, "kept")
    async with serving(tmp_path) as (control, _):
        await control.load("kept", None, {})
        await control.unload("kept", unload_dependents=False)
        for number in range(12):
            write(tmp_path, f"removed{number}")
            await control.load(f"removed{number}", None, {})
            shutil.rmtree(tmp_path / f"removed{number}")
            await control.unload(f"removed{number}", unload_dependents=False)
            await control.retired(f"removed{number}")
        names = {row.name for row in control.index(ready_only=False)}
    assert "kept" in names
    assert "removed11" in names
    assert len(names) <= 1 + 2 * 3
