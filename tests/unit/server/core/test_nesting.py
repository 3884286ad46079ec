"""Nested ensembles: bounds on depth and number of steps, checked in linear time."""

from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.domain.model_config import EnsembleStep, ModelConfig
from conch.server.core.catalog import Catalog
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.ensembles.nesting import MAX_ENSEMBLE_DEPTH, MAX_ENSEMBLE_RUNS, check_nesting
from conch.server.repository.namespaces import ModelId
from tests.unit.server.core.model_folders import serving, write, write_ensemble


def ensemble(name: str, *steps: str) -> ModelConfig:
    return ModelConfig(
        name, "", "ensemble", 0, (), (), ensemble_steps=tuple(EnsembleStep(step, -1, {}, {}) for step in steps)
    )


def serve(catalog: Catalog, config: ModelConfig) -> None:
    catalog.publish(ModelId("", config.name), {1: EnsembleModel(config, 1, {}, lambda step: catalog.of_step("", step))})


def chain(length: int, steps: int) -> Catalog:
    """A catalog in which each ensemble has the one before it as all of its steps, and the first one a model."""
    catalog = Catalog()
    serve(catalog, ModelConfig("leaf", "identity", "", 0, (), ()))
    serve(catalog, ensemble("e0", "leaf"))
    for number in range(1, length):
        serve(catalog, ensemble(f"e{number}", *[f"e{number - 1}"] * steps))
    return catalog


def test_nesting_depth_is_bounded() -> None:
    catalog = chain(MAX_ENSEMBLE_DEPTH, 1)
    check_nesting(catalog, ensemble("top", f"e{MAX_ENSEMBLE_DEPTH - 2}"), "")
    with pytest.raises(ConfigError, match=f"'top' nests ensembles more than {MAX_ENSEMBLE_DEPTH} deep: 'e0' is the"):
        check_nesting(catalog, ensemble("top", f"e{MAX_ENSEMBLE_DEPTH - 1}"), "")


def test_number_of_steps_is_counted_in_linear_time() -> None:
    with pytest.raises(ConfigError, match=rf"runs {256**12} steps .* {MAX_ENSEMBLE_RUNS} are the most"):
        check_nesting(chain(12, 256), ensemble("top", *["e11"] * 256), "")


def test_cycle_through_other_ensembles_is_rejected() -> None:
    catalog = chain(4, 2)
    with pytest.raises(ConfigError, match="step 1 of ensemble 'e0', model 'e3', has 'e0' among its own steps"):
        check_nesting(catalog, ensemble("e0", "leaf", "e3"), "")


async def test_requests_of_stages_multiply_through_nested_ensembles(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path, name)
    write_ensemble(tmp_path, "inner", "a", "b", "a")
    write_ensemble(tmp_path, "outer", "inner", "inner", "a")
    async with serving(tmp_path) as (control, inference):
        await control.load_at_start(["outer"])
        by_stage = {
            stage.config.name: requests for stage, requests in inference.stages(inference.model("outer", None)).items()
        }
        assert {name: requests.number for name, requests in by_stage.items()} == {"inner": 2, "a": 5, "b": 2}
        assert all(requests.exact for requests in by_stage.values())
        assert inference.stages(inference.model("a", None)) == {}
