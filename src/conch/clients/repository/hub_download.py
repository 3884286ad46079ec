"""Download models from the Hugging Face Hub: `hf://org/name`, `hf://org/name@revision`, `hf://org/name/file.gguf`."""

import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from glob import escape
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from urllib.parse import unquote

from huggingface_hub import HfApi, ModelInfo, constants, get_session, set_client_factory, snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

from conch.base.errors import ConchError, ConfigError, InvalidRequest, NotFound, Unavailable
from conch.base.http.client import MIN_BYTES_PER_S, SLOW_WINDOW_S
from conch.base.http.reach import check_target
from conch.base.pacing import MinimumRate
from conch.server.repository.disk_space import require_space
from conch.server.repository.model_kinds import DetectedModel, Kind, find_file, find_model
from conch.server.repository.remote.listing import inside

_LOCATION = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^/]+))?(?:/(?P<file>.+))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_HUB = "https://huggingface.co"
_TIMEOUT_S = 30.0  # for the next bytes of the list of files
_LIST_S = 120.0  # for all of it
_LIST_BYTES, _DOWNLOAD_BYTES = 1 << 30, 4 << 30  # of this process's memory for the list, and while files come
_OTHER_FILES_BYTES = 16 << 20  # such as the library's list of the files


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
    exist, access is denied, the Hub cannot be reached, a name is unsafe, a file is larger than the Hub announces or
    comes too slowly, or an inner host is named that only inner hosts may name.
    """
    _watch_requests()
    try:
        with _limited(resource.RLIMIT_DATA, _data_bytes() + _LIST_BYTES):
            info = _listed(location)
        commit = info.sha or location.revision
        if info.sha and not _COMMIT.fullmatch(info.sha):  # a folder's name in the Hub's cache
            raise ConfigError(f"{constants.ENDPOINT}: {commit[:80]!a} is not a commit")
        announced = {file.rfilename: file.size for file in info.siblings or ()}
        model = _selected(location, list(announced))
        for name in model.names:
            inside(name, f"{constants.ENDPOINT}/{location.repo}")
        sizes = [announced[name] for name in model.names]
        cache = constants.HF_HUB_CACHE
        require_space(Path(cache), sum(size or 0 for size in sizes), location.repo, "set HF_HOME to another disk")
        files = model.names[0] if len(model.names) == 1 else f"{len(model.names)} files"
        report(f"fetching {files} of {location.repo} at {commit[:12]} from {constants.ENDPOINT}")
        patterns = [escape(name) for name in model.names]
        largest = max((size for size in sizes if size is not None), default=0)
        with (
            _limited(resource.RLIMIT_FSIZE, largest + _OTHER_FILES_BYTES if largest else resource.RLIM_INFINITY),
            _limited(resource.RLIMIT_DATA, _data_bytes() + _DOWNLOAD_BYTES),
        ):
            bars = bounded_bars(sum(size or 0 for size in sizes) + _OTHER_FILES_BYTES)
            fetched = snapshot_download(location.repo, revision=commit, allow_patterns=patterns, tqdm_class=bars)
            folder = Path(fetched)
    except ConchError:
        raise
    except Exception as error:  # of the library, its HTTP client or the system; their types depend on the version
        raise _explained(location, error) from error
    return folder / model.names[0] if model.kind is Kind.FILE else folder


@cache
def _watch_requests() -> None:
    """Check the hosts that the library asks, also after redirects, and the rates of what they send.

    The library closes its client when a connection fails, so each one that it makes has the checks.
    """
    if constants.ENDPOINT != _HUB:
        # Xet's storage is named by answers of the endpoint, and asked by native code, which checks no host.
        constants.HF_HUB_DISABLE_XET = True
    client = get_session()
    http = sys.modules[type(client).__module__.partition(".")[0]]  # its name depends on the library's version

    def check(request: Any) -> None:
        check_target(constants.ENDPOINT, str(request.url))

    class PacedStream(http.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, response: Any) -> None:
            self.request, self.stream = response.request, response.stream

        def __iter__(self) -> Iterator[bytes]:
            rate = MinimumRate(MIN_BYTES_PER_S, SLOW_WINDOW_S)
            began = time.monotonic()
            for piece in self.stream:
                if slow := rate.shortfall(len(piece), time.monotonic() - began):
                    raise http.ReadTimeout(slow, request=self.request)  # the library resumes some times
                yield piece
                began = time.monotonic()

        def close(self) -> None:
            self.stream.close()

    def pace(response: Any) -> None:
        response.stream = PacedStream(response)

    hooks: dict[str, list[Callable[..., Any]]] = {
        "request": [*client.event_hooks["request"], check],
        "response": [*client.event_hooks["response"], pace],
    }
    follow, timeout = client.follow_redirects, client.timeout
    set_client_factory(partial(type(client), event_hooks=hooks, follow_redirects=follow, timeout=timeout))


def _listed(location: HubLocation) -> ModelInfo:
    """Return the Hub's list of a model's files. Raises TimeoutError, and errors of the library.

    The library's limit is for each wait, so a Hub may send a byte every few seconds: the call is abandoned then.
    """
    outcome: SimpleQueue[ModelInfo | BaseException] = SimpleQueue()

    def ask() -> None:
        try:
            revision = location.revision or None
            api = HfApi()
            outcome.put(api.model_info(location.repo, revision=revision, timeout=_TIMEOUT_S, files_metadata=True))
        except BaseException as error:
            outcome.put(error)

    Thread(target=ask, name="conch-hub-list", daemon=True).start()
    try:
        listed = outcome.get(timeout=_LIST_S)
    except Empty:
        raise TimeoutError(f"the list of its files takes more than {_LIST_S:.0f} s") from None
    if isinstance(listed, BaseException):
        raise listed
    return listed


@contextmanager
def _limited(kind: int, maximum: int) -> Iterator[None]:
    """Limit a resource of this process: the library reads answers whole, and compares files' sizes at the end."""
    before = resource.getrlimit(kind)
    limits = [limit for limit in (maximum, *before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(limits, default=maximum), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def bounded_bars(limit: int) -> type[tqdm]:
    """Return a class of progress bars that ends a download of more than `limit` bytes in all.

    Each file may exceed what was announced for it, up to the limit of the largest.
    """

    class BoundedBar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
            self.fetched = 0.0 if options.get("unit") == "B" else -inf  # of the bars of bytes

        def update(self, n: float | None = 1) -> None:
            self.fetched += n or 0
            if self.fetched > limit:
                raise OSError(f"the Hub sends more than the {limit} bytes that it announces")
            super().update(n)

    return BoundedBar


def _selected(location: HubLocation, names: Sequence[str]) -> DetectedModel:
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
    if isinstance(error, MemoryError):
        error = MemoryError("the Hub's answer takes too much memory")
    reason = (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
    return Unavailable(
        f"{where} cannot be fetched: {reason}. Set HF_ENDPOINT to a mirror or HTTPS_PROXY to a proxy, or download the "
        "files on another machine and add their path"
    )
