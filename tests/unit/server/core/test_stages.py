"""Depth factors of ensembles."""

from pathlib import Path

from tests.unit.server.core.model_folders import serving, write, write_ensemble


async def test_requests_of_stages_multiply_through_nested_ensembles(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path, name)
    write_ensemble(tmp_path, "inner", "a", "b", "a")
    write_ensemble(tmp_path, "outer", "inner", "inner", "a")
    async with serving(tmp_path) as (control, inference):
        await control.load_at_start(["outer"])
        found = {stage.config.name: each for stage, each in inference.stages(inference.model("outer", None)).items()}
        assert {name: each.number for name, each in found.items()} == {"inner": 2, "a": 5, "b": 2}
        assert all(each.exact for each in found.values())
        assert inference.stages(inference.model("a", None)) == {}
