"""Version directories of a model, and which of them its version policy serves."""

import os
from collections.abc import Sequence
from pathlib import Path

from conch.errors import ModelLoadError
from conch.model_config import ModelConfig, VersionPolicyKind
from conch.repository.version_hints import missing_version

# Triton keeps versions in 64-bit integers.
_LONGEST = len(str(2**63 - 1)) - 1


def versions_on_disk(directory: Path) -> tuple[int, ...]:
    """Return the numbers of the version directories, ascending; names that are no number or begin with 0 are not."""
    try:
        with os.scandir(directory) as entries:
            return tuple(sorted(int(entry.name) for entry in entries if _is_version(entry.name) and entry.is_dir()))
    except OSError:
        return ()


def version_files(directory: Path, version: int) -> dict[str, bool]:
    """Return what lies in a version directory: name → whether it is a directory itself."""
    try:
        with os.scandir(directory / str(version)) as entries:
            return {entry.name: entry.is_dir() for entry in entries}
    except OSError:
        return {}


def chosen_versions(config: ModelConfig, versions: Sequence[int], directory: Path | None = None) -> tuple[int, ...]:
    """Return which of the versions on disk the version policy serves, ascending.

    Versions that the policy names but that are not there are left out. Raises ModelLoadError if none remains; given
    the model's `directory`, the error says what was found there in place of versions.
    """
    policy = config.version_policy
    present = sorted(set(versions))
    if policy.kind is VersionPolicyKind.ALL:
        chosen = present
    elif policy.kind is VersionPolicyKind.SPECIFIC:
        chosen = [version for version in present if version in policy.versions]
    else:
        chosen = present[max(len(present) - policy.num_versions, 0) :]
    if not chosen:
        on_disk = ", ".join(map(str, present)) or "none"
        raise ModelLoadError(
            f"at least one version must be available under the version policy of model '{config.name}' "
            f"(policy: {policy.kind.value}, versions on disk: {on_disk})"
            + (f"; {missing_version(directory)}" if directory is not None and not present else "")
        )
    return tuple(chosen)


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and name[0] != "0" and len(name) <= _LONGEST
