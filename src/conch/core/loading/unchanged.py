"""Which versions of a served model a reload leaves alone: those whose files are as they were when they were loaded."""

import re
from collections.abc import Mapping

from conch.core.served_model import ServedModel
from conch.repository.store import ModelFiles
from conch.repository.watch import Fingerprint

_IN_VERSION = re.compile(r"[1-9][0-9]*/")


def unchanged_versions(
    served: Mapping[int, ServedModel], old: ModelFiles | None, new: ModelFiles
) -> dict[int, ServedModel]:
    """Return the served versions with the same files in both states of a model's folder.

    A file outside of the version folders, such as labels, belongs to every version. Configurations are left out: they
    are compared when they are complete. Nothing is known of files that a load request or a remote repository brought.
    """
    if old is None or old.temporary or new.temporary or old.directory != new.directory:
        return {}
    if _shared(old.fingerprint) != _shared(new.fingerprint):
        return {}
    return {
        version: model
        for version, model in served.items()
        if _of_version(old.fingerprint, version) == _of_version(new.fingerprint, version)
    }


def _of_version(stamps: Fingerprint, version: int) -> Fingerprint:
    return tuple(entry for entry in stamps if entry[0].startswith(f"{version}/"))


def _shared(stamps: Fingerprint) -> Fingerprint:
    return tuple(entry for entry in stamps if not _IN_VERSION.match(entry[0]) and not entry[0].endswith(".pbtxt"))
