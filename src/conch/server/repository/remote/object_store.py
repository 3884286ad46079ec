"""Repositories in object stores: S3 and compatible ones, Google Cloud Storage, Azure Blob Storage.

The only module that imports `obstore`.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from conch.base.control_characters import printable
from conch.base.errors import ConchError, ConfigError, NotFound, Unavailable, Unreachable
from conch.base.extras import install_command
from conch.base.http.credentials import without_secrets
from conch.server.repository.remote.credentials import AwsSettings, aws_settings, triton_credential
from conch.server.repository.remote.download import Buffer, Download, Downloader
from conch.server.repository.remote.listing import ChangedMeanwhile, Contents, RemoteFile, by_model, inside, key_of
from conch.server.repository.remote.location import ObjectStoreLocation

try:
    import obstore
    from obstore import exceptions, store
except ImportError as missing:
    raise ConfigError(
        f"model repositories in object stores need the package 'obstore': {install_command('remote')}"
    ) from missing

_CHUNK_BYTES = 4 * 1024 * 1024
_MAX_OBJECTS = 1_000_000  # of a repository, about 1 kB of memory each
# Of a request for a part of an object, which is retried then.
_TIMEOUT = timedelta(seconds=120)
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}

_STATUS = re.compile(r"status code: (\d{3}[ \w]*)")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_URL = re.compile(r"https?://\S+")
_CAUSES = {
    "169.254.169.254": "no credentials were found, and the machine provides none; see docs/repositories.md",
    "metadata.google.internal": "no credentials were found, and the machine provides none; see docs/repositories.md",
    "onnection refused": "connection refused",
    "ConnectionRefused": "connection refused",
    "dns error": "the host name cannot be resolved",
    "ertificate": "the certificate of the server is not trusted",
    "timed out": "timed out",
    "TimedOut": "timed out",
}


class ObjectStoreSource:
    """The objects below a prefix. Credentials are read again for every listing, so that they can be renewed."""

    def __init__(self, location: ObjectStoreLocation, downloader: Downloader) -> None:
        self._location = location
        self._downloader = downloader

    def contents(self, model: str | None = None) -> Contents:
        """List the whole repository or one model. Raises ConfigError, Unavailable, NotFound."""
        opened = self._open()
        below = f"{model}/" if model else None
        listed: list[Mapping[str, Any]] = []
        try:
            for page in obstore.list(opened, below):
                listed += page
                if len(listed) > _MAX_OBJECTS:
                    raise ConfigError(f"{self._location}: more than {_MAX_OBJECTS} objects; name a prefix with fewer")
        except ConchError:
            raise
        except Exception as error:
            raise self._failure(error, "") from error
        return by_model(self._entries(listed))

    def fetch(self, model: str, entries: Sequence[RemoteFile]) -> None:
        """Fetch a model's objects. Raises ChangedMeanwhile, Unavailable."""
        opened = self._open()
        self._downloader.fetch(
            Download(
                key=entry.key,
                name=f"{self._location}/{model}/{entry.path}",
                size=entry.size,
                read=self._reader(opened, f"{model}/{entry.path}", entry.etag),
            )
            for entry in entries
            if not entry.is_folder
        )

    def _entries(self, listed: Sequence[Mapping[str, Any]]) -> Iterator[RemoteFile]:
        paths = [str(item["path"]) for item in listed]
        for path in paths:
            inside(path, str(self._location))  # bounds the work below
        folders = {path[:index] for path in paths for index, mark in enumerate(path) if mark == "/"}
        for path, item in zip(paths, listed, strict=True):
            size, etag = int(item["size"]), item["e_tag"] or str(item["last_modified"])
            # Consoles represent an empty folder by an empty object whose name ends with a slash, which the client
            # strips. An empty object with a number as its name is therefore a version directory.
            marker = size == 0 and (path in folders or path.rpartition("/")[2].isdigit())
            key = "" if marker else key_of(str(self._location), path, etag, str(size))
            yield RemoteFile(path, key, size, str(item["e_tag"] or ""))

    def _reader(self, opened: Any, path: str, etag: str) -> Callable[[int, int], Iterable[Buffer]]:
        def read(start: int, end: int) -> Iterator[Buffer]:
            options: Any = {"if_match": etag} if etag else {}
            if end > start:  # an empty object has no range
                options["range"] = (start, end)
            try:
                result = obstore.get(opened, path, options=options)
                # A server without support for conditions ignores if_match.
                if etag and result.meta["e_tag"] not in (etag, None):
                    raise ChangedMeanwhile(f"{self._location}/{path}")
                for chunk in result.stream(_CHUNK_BYTES):
                    yield memoryview(chunk)
            except ConchError:
                raise
            except Exception as error:
                raise self._failure(error, path) from error

        return read

    def _failure(self, error: Exception, path: str) -> Exception:
        """Convert an error of the client to one about the repository, without secrets."""
        where = f"{self._location}/{path}" if path else str(self._location)
        if isinstance(error, exceptions.PreconditionError | FileNotFoundError) and path:
            return ChangedMeanwhile(where)
        text = str(error)
        status, code = _STATUS.search(text), _CODE.search(text)
        answer = " ".join(part for part in (status and status[1].strip(), code and code[1]) if part)
        if answer[:3] in ("401", "403"):
            return Unavailable(f"{where}: access denied: {answer}")
        if isinstance(error, FileNotFoundError) or (code and code[1] in ("NoSuchBucket", "ContainerNotFound")):
            return NotFound(f"{where}: {answer or 'there is no such bucket'}")
        cause = next((cause for mark, cause in _CAUSES.items() if mark in text), "")
        detail = printable(_URL.sub(lambda url: without_secrets(url[0]), text.partition("\n")[0]))
        if "invalid path" in text:
            return ConfigError(f"{where}: a name cannot be a path: it contains control characters or '//', '..'")
        kind = Unavailable if answer and answer[0] != "5" else Unreachable
        return kind(f"{where}: {answer or cause or detail}")

    def _open(self) -> Any:
        try:
            if self._location.scheme == "s3":
                return self._s3()
            return self._gcs() if self._location.scheme == "gs" else self._azure()
        except ConchError:
            raise
        except Exception as error:  # a malformed key or credential file
            reason = type(error).__name__ if isinstance(error, ValueError) else str(error).partition("\n")[0]
            raise ConfigError(f"{self._location}: cannot be opened: {reason}") from error

    def _s3(self) -> Any:
        settings = aws_settings(str(self._location), os.environ)
        environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        endpoint = self._location.endpoint or environment or settings.endpoint
        options: dict[str, str] = {"endpoint": endpoint} if endpoint else {}
        if settings.region:
            options["region"] = settings.region
        return store.S3Store(
            self._location.bucket,
            prefix=self._location.prefix or None,
            config=options,  # type: ignore[arg-type]
            client_options=_client(endpoint),
            retry_config=_RETRIES,
            credential_provider=_provider(settings) if settings.key_id else None,
        )

    def _gcs(self) -> Any:
        options: dict[str, Any] = {}
        if path := triton_credential("gs", str(self._location), os.environ):
            options["service_account"] = str(path)
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if emulator:
            url = emulator if "://" in emulator else f"http://{emulator}"
            options |= {"base_url": url, "skip_signature": True}
        return store.GCSStore(
            self._location.bucket,
            prefix=self._location.prefix or None,
            config=options,  # type: ignore[arg-type]
            client_options=_client(options.get("base_url", "")),
            retry_config=_RETRIES,
        )

    def _azure(self) -> Any:
        entry = triton_credential("as", str(self._location), os.environ) or {}
        key = entry.get("account_key") or os.environ.get("AZURE_STORAGE_KEY")
        client = entry.get("client_id") or os.environ.get("AZURE_STORAGE_CLIENT_ID")
        endpoint = os.environ.get("AZURE_STORAGE_ENDPOINT", "")
        options = {"account_name": entry.get("account_str") or self._location.account, "account_key": key}
        options |= {"client_id": client, "endpoint": endpoint}
        return store.AzureStore(
            self._location.bucket,
            prefix=self._location.prefix or None,
            config={name: value for name, value in options.items() if value},  # type: ignore[arg-type]
            client_options=_client(endpoint),
            retry_config=_RETRIES,
        )


def _client(endpoint: str) -> Any:
    return {"allow_http": endpoint.startswith("http://"), "timeout": _TIMEOUT}


def _provider(settings: AwsSettings) -> Callable[[], Any]:
    credential = {
        "access_key_id": settings.key_id,
        "secret_access_key": settings.secret_key,
        "token": settings.session_token or None,
        "expires_at": None,
    }
    return lambda: credential
