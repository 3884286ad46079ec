"""Version directories of a model, and the versions that its version policy selects."""

import os
from collections.abc import Sequence
from pathlib import Path

from conch.base.errors import ModelLoadError
from conch.domain.config.version_hints import missing_version
from conch.domain.model_config import ModelConfig, VersionPolicyKind

# Triton's versions are 64-bit integers.
_MAX_DIGITS = len(str(2**63 - 1)) - 1


def versions_on_disk(directory: Path) -> tuple[int, ...]:
    """Return the numbers of the version directories, ascending. Other names and leading zeros are ignored."""
    try:
        with os.scandir(directory) as entries:
            return tuple(sorted(int(entry.name) for entry in entries if _is_version(entry.name) and entry.is_dir()))
    except OSError:
        return ()


def version_files(directory: Path, version: int) -> dict[str, bool]:
    """Return the entries of a version directory: name → whether it is a directory."""
    try:
        with os.scandir(directory / str(version)) as entries:
            return {entry.name: entry.is_dir() for entry in entries}
    except OSError:
        return {}


def chosen_versions(config: ModelConfig, versions: Sequence[int], directory: Path | None = None) -> tuple[int, ...]:
    """Return the versions on disk that the version policy selects, ascending.

    Versions that the policy names and that do not exist are left out. Raises ModelLoadError if none remains; with the
    model's `directory`, the error says what it contains instead of versions.
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
    return name.isascii() and name.isdigit() and name[0] != "0" and len(name) <= _MAX_DIGITS
