"""Models of the Hugging Face Hub: `hf://org/name`, `hf://org/name@revision`, `hf://org/name/file.gguf`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from urllib.parse import unquote

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from conch.cli.repository.model_kinds import Found, Kind, find_file, find_model
from conch.errors import ConchError, InvalidRequest, NotFound, Unavailable

_LOCATION = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/]+))?(?:/(?P<file>.+))?", re.ASCII)
_TIMEOUT_S = 30.0  # for the list of files


@dataclass(frozen=True, slots=True)
class HubLocation:
    """A model on the Hub, or one file of it."""

    repo: str
    revision: str  # "" for the usual one
    file: str  # "" for what the model consists of

    @property
    def name(self) -> str:
        """What the model is called, if nobody says otherwise."""
        return Path(self.file).stem if self.file else self.repo.rpartition("/")[2]


def parse_location(text: str) -> HubLocation:
    """Read a `hf://` URL. A revision with a slash has it as %2F. Raises InvalidRequest if it is none."""
    match = _LOCATION.fullmatch(text)
    file = match["file"] or "" if match else ""
    if match is None or (file and any(part in ("", ".", "..") for part in file.split("/"))):
        raise InvalidRequest(
            f"'{text}' names no model: it must be like hf://org/name, hf://org/name@revision or hf://org/name/file.gguf"
        )
    return HubLocation(match["repo"], unquote(match["revision"] or ""), file)


def fetch(location: HubLocation, tell: Callable[[str], None]) -> Path:
    """Bring the files that make up a model into the Hub's cache and return where: a file, or a folder.

    The Hub's library shows how far it is, and goes on where an earlier attempt broke off.
    Raises ConchError: what is not there, what may not be read, or that the Hub cannot be reached and what to do then.
    """
    try:
        info = HfApi().model_info(location.repo, revision=location.revision or None, timeout=_TIMEOUT_S)
        commit = info.sha or location.revision
        found = _wanted(location, [each.rfilename for each in info.siblings or ()])
        what = found.names[0] if len(found.names) == 1 else f"{len(found.names)} files"
        tell(f"fetching {what} of {location.repo} at {commit[:12]} from {constants.ENDPOINT}")
        patterns = [escape(name) for name in found.names]
        folder = Path(snapshot_download(location.repo, revision=commit, allow_patterns=patterns))
    except ConchError:
        raise
    except Exception as error:  # the library's, its HTTP client's or the system's: they change from version to version
        raise _explained(location, error) from error
    return folder / found.names[0] if found.kind is Kind.FILE else folder


def _wanted(location: HubLocation, names: Sequence[str]) -> Found:
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
        return NotFound(f"there is no {where}, or it is private and HF_TOKEN holds no token that may read it")
    reason = (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
    return Unavailable(
        f"{where} cannot be fetched: {reason}. HF_ENDPOINT names a mirror and HTTPS_PROXY a proxy; or fetch the files "
        "where there is a network, and add their PATH"
    )
