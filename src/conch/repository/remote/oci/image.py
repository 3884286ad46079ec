"""Repositories in OCI images, verified by digests, with their layers unpacked in the cache."""

import json
import platform
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest
from typing import Any

from conch.archives.limits import ArchiveLimits
from conch.errors import ConfigError, Unavailable
from conch.repository.remote.archive import Unpacker
from conch.repository.remote.cache import Cache
from conch.repository.remote.download import PART_BYTES, Download, Downloader
from conch.repository.remote.listing import Contents, RemoteFile
from conch.repository.remote.location import ImageLocation
from conch.repository.remote.oci.registry import Registry
from conch.repository.remote.source import ChangedMeanwhile
from conch.repository.remote.tree import merged, models_of, read_index, write_index

_LAYERS = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_SHA256 = "sha256:"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_LAYERS = 1000  # Docker's limit is 127; images from `conch repo pack` have one layer for each model
_MAX_LAYER_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in a manifest."""

    digest: str
    size: int

    @property
    def key(self) -> str:
        """The digest without the name of its algorithm."""
        return self.digest.removeprefix(_SHA256)


class ImageSource:
    """One image. A moved tag is a change; only layers that are not in the cache are fetched."""

    def __init__(
        self, location: ImageLocation, cache: Cache, downloader: Downloader, limits: ArchiveLimits | None = None
    ) -> None:
        self._location = location
        self._cache = cache
        self._downloader = downloader
        self._unpacker = Unpacker(cache, str(location), limits)
        self._registry = Registry(location)
        self._lock = threading.Lock()

    def contents(self, model: str | None = None) -> Contents:  # noqa: ARG002 - layers are fetched whole
        """Read the manifest, and fetch and unpack new layers. Raises ConfigError, Unavailable."""
        with self._lock:
            layers = self._layers()
            self._fetch([layer for layer in layers if read_index(self._cache, layer.key) is None])
            models = self._models(layers)
            missing = {e.key for es in models.values() for e in es if not e.is_folder and not self._cache.has(e.key)}
            if missing:
                self._fetch([layer for layer in layers if any(e.key in missing for e in self._known(layer))])
                models = self._models(layers)
            return models

    def fetch(self, model: str, entries: Sequence[RemoteFile]) -> None:
        """Check that all files are in the cache. Raises ChangedMeanwhile."""
        if not all(one.is_folder or self._cache.has(one.key) for one in entries):
            raise ChangedMeanwhile(f"the cache of {self._location}, model '{model}',")

    def _models(self, layers: Sequence[Layer]) -> Contents:
        return models_of(merged((self._known(layer) for layer in layers), str(self._location)), self._location.stem)

    def _known(self, layer: Layer) -> list[RemoteFile]:
        return read_index(self._cache, layer.key) or []

    def _fetch(self, missing: Iterable[Layer]) -> None:
        layers = list(dict.fromkeys(missing))  # an image may contain the same layer twice
        self._downloader.fetch(
            Download(
                key=layer.key,
                name=f"{self._location}, layer {layer.digest}",
                size=layer.size,
                read=partial(self._registry.read_blob, layer.digest, size=layer.size),
                in_parts=layer.size > PART_BYTES and self._registry.supports_ranges(layer.digest),
            )
            for layer in layers
        )
        for layer in layers:
            blob = self._cache.object(layer.key)
            try:
                with blob.open("rb") as stream:
                    digest = file_digest(stream, "sha256").hexdigest()
                if digest != layer.key:
                    raise Unavailable(f"{self._location}: a layer is damaged: {digest}, not {layer.key}")
                write_index(self._cache, layer.key, self._unpacker.unpack(blob, ".tar"))
            finally:
                blob.unlink(missing_ok=True)

    def _layers(self) -> list[Layer]:
        manifest = self._manifest(self._location.reference)
        if "manifests" in manifest:
            manifest = self._manifest(self._choose(manifest["manifests"]))
        try:
            return list(self._read_layers(manifest["layers"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{self._location}: not an OCI image: its manifest has no readable layers") from error

    def _manifest(self, reference: str) -> Mapping[str, Any]:
        body, _ = self._registry.manifest(reference)
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self._location}: the manifest is not JSON") from error
        if not isinstance(document, dict):
            raise ConfigError(f"{self._location}: the manifest is not a JSON object")
        return document

    def _choose(self, manifests: Any) -> str:
        """Return the digest of the image for this machine's architecture, or of the only image."""
        machine = _MACHINES.get(platform.machine(), platform.machine())
        try:
            if len(manifests) == 1:
                return str(manifests[0]["digest"])
            for one in manifests:
                target = one.get("platform", {})
                if target.get("os") == "linux" and target.get("architecture") == machine:
                    return str(one["digest"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self._location}: the index of the image cannot be read") from error
        raise ConfigError(f"{self._location}: has no image for linux/{machine}")

    def _read_layers(self, layers: Any) -> Iterator[Layer]:
        if len(layers) > _MAX_LAYERS:
            raise ConfigError(f"{self._location}: has {len(layers)} layers; the limit is {_MAX_LAYERS}")
        for one in layers:
            kind, digest = str(one["mediaType"]), str(one["digest"])
            if kind not in _LAYERS:
                raise ConfigError(f"{self._location}: a layer has the type '{kind[:100]}', which is not supported")
            if (
                not digest.startswith(_SHA256)
                or len(digest) != len(_SHA256) + 64
                or not re.fullmatch("[0-9a-f]+", digest[7:])
            ):
                raise ConfigError(f"{self._location}: a layer has the digest '{digest[:100]}', which is not SHA-256")
            size = int(one["size"])
            if not 0 <= size <= _MAX_LAYER_BYTES:
                raise ConfigError(f"{self._location}: a layer has {size} bytes; the limit is {_MAX_LAYER_BYTES}")
            yield Layer(digest, size)
