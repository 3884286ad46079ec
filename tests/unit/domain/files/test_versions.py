"""Version directories and version policies."""

from pathlib import Path

import pytest

from conch.base.errors import ModelLoadError
from conch.domain.files.model_folder import chosen_versions, version_files, versions_on_disk
from conch.domain.model_config import ModelConfig, VersionPolicy, VersionPolicyKind


def config(policy: VersionPolicy) -> ModelConfig:
    return ModelConfig("m", "python", "", 0, (), (), version_policy=policy)


def test_version_directories_are_numbers_without_a_leading_zero(tmp_path: Path) -> None:
    for name in ["1", "10", "9", "0", "01", "-1", "1a", "x", "١", "9" * 30]:
        (tmp_path / name).mkdir()
    (tmp_path / "2").write_text("a file")
    assert versions_on_disk(tmp_path) == (1, 9, 10)
    assert versions_on_disk(tmp_path / "nowhere") == ()


def test_files_of_a_version(tmp_path: Path) -> None:
    (tmp_path / "1" / "model.savedmodel").mkdir(parents=True)
    (tmp_path / "1" / "model.py").write_text("")
    assert version_files(tmp_path, 1) == {"model.savedmodel": True, "model.py": False}
    assert version_files(tmp_path, 2) == {}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (VersionPolicy(), (12,)),
        (VersionPolicy(num_versions=2), (7, 12)),
        (VersionPolicy(num_versions=9), (3, 7, 12)),
        (VersionPolicy(VersionPolicyKind.ALL), (3, 7, 12)),
        (VersionPolicy(VersionPolicyKind.SPECIFIC, versions=(12, 3, 99)), (3, 12)),
    ],
)
def test_versions_selected_by_a_policy(policy: VersionPolicy, expected: tuple[int, ...]) -> None:
    assert chosen_versions(config(policy), [12, 3, 7]) == expected


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        (VersionPolicy(), []),
        (VersionPolicy(num_versions=0), [1, 2]),
        (VersionPolicy(VersionPolicyKind.ALL), []),
        (VersionPolicy(VersionPolicyKind.SPECIFIC, versions=(4,)), [1, 2]),
        (VersionPolicy(VersionPolicyKind.SPECIFIC), [1, 2]),
    ],
)
def test_a_policy_that_selects_no_version(policy: VersionPolicy, versions: list[int]) -> None:
    said = "at least one version must be available under the version policy of model 'm'"
    with pytest.raises(ModelLoadError, match=said):
        chosen_versions(config(policy), versions)
