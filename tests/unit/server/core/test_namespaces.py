"""Models of one name in several repositories: which of them a request, a step or a load refers to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conch.base.errors import ConchError, InvalidRequest, ModelLoadError, NotFound
from conch.server.backends.registry import BackendRegistry
from conch.server.core.catalog import Catalog, IndexEntry
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.inference import Inference
from conch.server.core.loading.builder import ModelBuilder
from conch.server.core.loading.model_manager import ModelManager
from conch.server.options.server_options import ServerOptions
from conch.server.repository.namespaces import ModelId, Repositories
from conch.server.repository.store import Repository
from tests.unit.server.core.model_folders import until, write, write_ensemble
from tests.unit.server.core.scripted import Caller, request


@asynccontextmanager
async def serving(*roots: Path) -> AsyncIterator[tuple[ModelManager, Inference, Catalog]]:
    backends, catalog = BackendRegistry(), Catalog()
    inference = Inference(catalog, strict_readiness=True, started=lambda: True)
    options = ServerOptions(model_control_mode="explicit")
    builder = ModelBuilder(options, backends, catalog)
    repositories = Repositories(Repository([root], namespace=str(root)) for root in roots)
    control = ModelManager(options, repositories, builder, catalog)
    yield control, inference, catalog
    await control.stop()
    await backends.stop()


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    root_a, root_b = tmp_path / "one", tmp_path / "two"
    write(root_a, "m")
    write(root_b, "m")
    write(root_a, "single")
    return root_a, root_b


def steps(inference: Inference, name: str) -> list[ModelId]:
    ensemble = inference.model(name, None)
    assert isinstance(ensemble, EnsembleModel)
    return [model.id for model in ensemble._models()]


async def test_name_in_two_repositories_is_ambiguous(roots: tuple[Path, Path]) -> None:
    async with serving(*roots) as (control, inference, _):
        await control.load_at_start(["*"])
        assert control.index(ready_only=False) == [
            IndexEntry("m", "1", "READY"),
            IndexEntry("single", "1", "READY"),
            IndexEntry("m", "1", "READY"),
        ]
        with pytest.raises(InvalidRequest) as raised:
            inference.infer(inference.model("m", None), request(name="m"), Caller())
        assert raised.value.message == (
            "There are 2 identifiers of model 'm' in global map, model namespace must be provided to resolve "
            f"ambiguity. It is in {roots[0]} and in {roots[1]}."
        )
        assert not await inference.model_ready("m", None)
        assert await inference.model_ready("m", None, str(roots[1]))
        with pytest.raises(InvalidRequest, match="requested model 'm' is not available"):
            inference.statistics("m")
        assert {(statistics.namespace, statistics.model_name) for statistics in inference.statistics()} == {
            (str(roots[0]), "m"),
            (str(roots[0]), "single"),
            (str(roots[1]), "m"),
        }
        assert inference.versions("single") == [1]
        assert inference.ready()


async def test_load_and_unload_apply_to_all_models_of_a_name(roots: tuple[Path, Path]) -> None:
    async with serving(*roots) as (control, inference, catalog):
        await control.load("m", None, {})
        assert {model.id.namespace for model in catalog} == {str(root) for root in roots}
        await control.load("single", None, {})
        await control.unload("m", unload_dependents=False)
        assert [model.id.name for model in catalog] == ["single"]
        with pytest.raises(NotFound, match="'m' has no available versions"):
            inference.infer(inference.model("m", None), request(name="m"), Caller())
        with pytest.raises(NotFound, match=r"failed to load 'nope', .*: model not found in any model repository"):
            await control.load("nope", None, {})
        with pytest.raises(NotFound, match=r"failed to load '\.\./one/m'"):
            await control.load("../one/m", None, {})
        for root in roots:
            (root / "m" / "config.pbtxt").write_text("nonsense")
        with pytest.raises(ConchError) as raised:
            await control.load("m", None, {})
        assert all(f"failed to load '{root}::m'" in raised.value.message for root in roots)


async def test_failed_model_keeps_its_name_ambiguous(roots: tuple[Path, Path]) -> None:
    """Requests for it must not be answered by another model."""
    (roots[0] / "m" / "config.pbtxt").write_text("nonsense")
    async with serving(*roots) as (control, inference, _):
        with pytest.raises(ModelLoadError, match=f"{roots[0]}::m"):
            await control.load("m", None, {})
        with pytest.raises(InvalidRequest, match="There are 2 identifiers"):
            inference.infer(inference.model("m", None), request(name="m"), Caller())
        await control.unload("m", unload_dependents=False)
        (roots[0] / "m" / "config.pbtxt").unlink()


async def test_step_uses_the_model_of_its_repository(roots: tuple[Path, Path]) -> None:
    root_a, root_b = roots
    for root in roots:
        write_ensemble(root, f"of_{root.name}", "m")
    write_ensemble(root_b, "elsewhere", "single")
    async with serving(*roots) as (control, inference, catalog):
        await control.load("of_two", None, {})
        assert steps(inference, "of_two") == [ModelId(str(root_b), "m")]
        assert inference.model("m", None).id == ModelId(str(root_b), "m")  # the other is not needed, and not there
        await control.load("elsewhere", None, {})
        assert steps(inference, "elsewhere") == [ModelId(str(root_a), "single")]
        await control.load("of_one", None, {})
        assert steps(inference, "of_one") == [ModelId(str(root_a), "m")]
        await control.unload("of_two", unload_dependents=True)
        await until(control, IndexEntry("m", "1", "UNAVAILABLE", "unloaded"))
        assert catalog.served(ModelId(str(root_a), "m"))
        assert not catalog.served(ModelId(str(root_b), "m"))


async def test_step_with_a_namespace(roots: tuple[Path, Path]) -> None:
    root_a, root_b = roots
    write_ensemble(root_b, "both", "m", "m")
    config = root_b / "both" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace('model_name: "m"', f'model_name: "m" model_namespace: "{root_a}"', 1))
    async with serving(*roots) as (control, inference, _):
        await control.load("both", None, {})
        assert steps(inference, "both") == [ModelId(str(root_a), "m"), ModelId(str(root_b), "m")]
        config.write_text(text.replace('model_name: "m"', 'model_name: "m" model_namespace: "/nowhere"', 1))
        with pytest.raises(
            ModelLoadError, match=r"models that are not available or ambiguous: m; step 0: .*/nowhere::m"
        ):
            await control.load("both", None, {})


async def test_ambiguous_step_is_rejected(roots: tuple[Path, Path], tmp_path: Path) -> None:
    write_ensemble(tmp_path / "three", "e", "m")
    async with serving(*roots, tmp_path / "three") as (control, _, _):
        await control.load("m", None, {})
        with pytest.raises(ModelLoadError, match="not available or ambiguous: m; step 0: There are 2 identifiers"):
            await control.load("e", None, {})


async def test_reload_links_the_ensemble_to_a_new_model_of_its_repository(roots: tuple[Path, Path]) -> None:
    root_a, root_b = roots
    write_ensemble(root_a, "e", "late")
    write(root_b, "late")
    async with serving(*roots) as (control, inference, catalog):
        await control.load("e", None, {})
        assert steps(inference, "e") == [ModelId(str(root_b), "late")]
        ensemble, other = inference.model("e", None), catalog.served(ModelId(str(root_b), "late"))
        write(root_a, "late")
        await control.load("e", None, {})
        assert steps(inference, "e") == [ModelId(str(root_a), "late")]
        assert inference.model("e", None) is ensemble  # nothing of it has changed
        assert catalog.served(ModelId(str(root_b), "late")) == other
        linked = catalog.served(ModelId(str(root_a), "late"))
        await control.load("e", None, {})
        assert catalog.served(ModelId(str(root_a), "late")) == linked


async def test_load_unloads_a_model_of_the_name_that_was_removed(roots: tuple[Path, Path]) -> None:
    root_a, root_b = roots
    write_ensemble(root_a, "e", "m")
    async with serving(*roots) as (control, inference, catalog):
        await control.load("e", None, {})
        await control.load("m", None, {})
        assert steps(inference, "e") == [ModelId(str(root_a), "m")]
        (root_a / "m").rename(root_a.parent / "elsewhere")
        await control.load("m", None, {})
        assert steps(inference, "e") == [ModelId(str(root_b), "m")]
        assert not catalog.served(ModelId(str(root_a), "m"))
        (root_a.parent / "elsewhere").rename(root_a / "m")
        await control.load("m", None, {})
        assert steps(inference, "e") == [ModelId(str(root_a), "m")]
