"""Download models from the Hugging Face Hub: `hf://org/name`, `hf://org/name@revision`, `hf://org/name/file.gguf`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from urllib.parse import unquote

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from conch.errors import ConchError, InvalidRequest, NotFound, Unavailable
from conch.repository.entries.model_kinds import Found, Kind, find_file, find_model

_LOCATION = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/]+))?(?:/(?P<file>.+))?", re.ASCII)
_TIMEOUT_S = 30.0  # for the list of files


@dataclass(frozen=True, slots=True)
class HubLocation:
    """A model on the Hub, or one file of it."""

    repo: str
    revision: str  # "" for the default one
    file: str  # "" for all files of the model

    @property
    def name(self) -> str:
        """The default name of the model."""
        return Path(self.file).stem if self.file else self.repo.rpartition("/")[2]


def parse_location(text: str) -> HubLocation:
    """Parse an `hf://` URL. A slash in a revision is written %2F. Raises InvalidRequest for an invalid URL."""
    match = _LOCATION.fullmatch(text)
    file = match["file"] or "" if match else ""
    if match is None or (file and any(part in ("", ".", "..") for part in file.split("/"))):
        raise InvalidRequest(
            f"'{text}' is not a valid model URL: expected hf://org/name, hf://org/name@revision or "
            "hf://org/name/file.gguf"
        )
    return HubLocation(match["repo"], unquote(match["revision"] or ""), file)


def fetch(location: HubLocation, report: Callable[[str], None]) -> Path:
    """Download the files of a model into the Hub's cache and return the path of the file or folder.

    The Hub's library shows the progress and resumes interrupted downloads. Raises ConchError if the model does not
    exist, access is denied, or the Hub cannot be reached.
    """
    try:
        info = HfApi().model_info(location.repo, revision=location.revision or None, timeout=_TIMEOUT_S)
        commit = info.sha or location.revision
        found = _selected(location, [each.rfilename for each in info.siblings or ()])
        files = found.names[0] if len(found.names) == 1 else f"{len(found.names)} files"
        report(f"fetching {files} of {location.repo} at {commit[:12]} from {constants.ENDPOINT}")
        patterns = [escape(name) for name in found.names]
        folder = Path(snapshot_download(location.repo, revision=commit, allow_patterns=patterns))
    except ConchError:
        raise
    except Exception as error:  # of the library, its HTTP client or the system; their types depend on the version
        raise _explained(location, error) from error
    return folder / found.names[0] if found.kind is Kind.FILE else folder


def _selected(location: HubLocation, names: Sequence[str]) -> Found:
    if location.file:
        return find_file(names, location.file, location.repo)
    return find_model(names, location.repo)


def _explained(location: HubLocation, error: Exception) -> ConchError:
    where = f"{constants.ENDPOINT}/{location.repo}"
    if isinstance(error, GatedRepoError):
        return Unavailable(f"{where} is gated: accept its terms there, and set HF_TOKEN to a token of your account")
    if isinstance(error, RevisionNotFoundError):
        return NotFound(f"{where} has no revision '{location.revision}'")
    if isinstance(error, RepositoryNotFoundError):
        return NotFound(f"{where} does not exist, or it is private and HF_TOKEN has no token with access to it")
    reason = (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
    return Unavailable(
        f"{where} cannot be fetched: {reason}. Set HF_ENDPOINT to a mirror or HTTPS_PROXY to a proxy, or download the "
        "files on another machine and add their path"
    )
