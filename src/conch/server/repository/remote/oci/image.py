"""Repositories in OCI images, verified by digests, with their layers unpacked in the cache."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import file_digest
from logging import getLogger

from conch.base.errors import Unavailable
from conch.server.repository.remote.archive import Unpacker
from conch.server.repository.remote.cache import Cache
from conch.server.repository.remote.download import PART_BYTES, Download, Downloader
from conch.server.repository.remote.listing import ChangedMeanwhile, Contents, RemoteFile
from conch.server.repository.remote.location import ImageLocation
from conch.server.repository.remote.oci.manifest import Layer, choose, layers_of, parse_document
from conch.server.repository.remote.oci.registry import Registry
from conch.server.repository.remote.oci.signature import SignatureVerifier
from conch.server.repository.remote.tree import merged, models_of_image, read_index, write_index

_log = getLogger(__name__)

_BATCH_BYTES = 256 * 1024 * 1024  # packed layers are removed after each batch, so that they take little space


class ImageSource:
    """One image. A moved tag is a change; only layers that are not in the cache are fetched.

    With a `verifier`, the image must be signed. `platform` selects an image of an index, "" this machine's.
    """

    def __init__(
        self,
        location: ImageLocation,
        cache: Cache,
        downloader: Downloader,
        *,
        verifier: SignatureVerifier | None = None,
        platform: str = "",
    ) -> None:
        self._location = location
        self._cache = cache
        self._downloader = downloader
        self._unpacker = Unpacker(cache, str(location), defers=True)
        self._registry = Registry(location)
        self._verifier = verifier
        self._platform = platform
        self._digest = ""  # of the image whose layers are `_layers`
        self._layers: list[Layer] = []
        self._lock = threading.Lock()

    def contents(self, model: str | None = None) -> Contents:  # noqa: ARG002 - layers are fetched whole
        """Read the manifest, and fetch and unpack new layers. Raises ConfigError, Unavailable."""
        with self._lock:
            layers = self._current_layers()
            self._fetch([layer for layer in layers if read_index(self._cache, layer.key) is None])
            models = self._models(layers)
            missing = {e.key for es in models.values() for e in es if not e.is_folder and not self._cache.has(e.key)}
            if missing:
                self._fetch([layer for layer in layers if any(e.key in missing for e in self._known(layer))])
                models = self._models(layers)
            return models

    def fetch(self, model: str, entries: Sequence[RemoteFile]) -> None:
        """Check that all files are in the cache. Raises ChangedMeanwhile."""
        if not all(entry.is_folder or self._cache.has(entry.key) for entry in entries):
            raise ChangedMeanwhile(f"the cache of {self._location}, model '{model}',")

    def _models(self, layers: Sequence[Layer]) -> Contents:
        where = str(self._location)
        return models_of_image(merged((self._known(layer) for layer in layers), where), self._location.stem, where)

    def _known(self, layer: Layer) -> list[RemoteFile]:
        return read_index(self._cache, layer.key) or []

    def _fetch(self, missing: Iterable[Layer]) -> None:
        distinct = dict.fromkeys(missing)  # an image may contain the same layer twice
        if distinct:
            # Weights hardly compress: unpacked, the layers take about as much as the manifest announces.
            self._cache.admit(sum(layer.size for layer in distinct), str(self._location))
        for layers in _batches(distinct):
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
                self._unpack(layer)

    def _unpack(self, layer: Layer) -> None:
        blob = self._cache.object(layer.key)
        try:
            with blob.open("rb") as stream:
                digest = file_digest(stream, "sha256").hexdigest()
            if digest != layer.key:
                raise Unavailable(f"{self._location}: a layer is damaged: {digest}, not {layer.key}")
            write_index(self._cache, layer.key, self._unpacker.unpack(blob, ".tar"))
        finally:
            blob.unlink(missing_ok=True)

    def _current_layers(self) -> list[Layer]:
        """Return the layers of the image that the tag names now; unchanged, this is a HEAD request, or none."""
        where = str(self._location)
        reference = self._location.reference
        if self._digest and self._digest == (self._location.digest or self._registry.digest(reference)):
            return self._layers
        body, digest = self._registry.manifest(reference)
        if self._verifier is not None:
            self._verifier.verify(self._registry, digest, where)
        manifest = parse_document(body, where)
        if "manifests" in manifest:
            body, _ = self._registry.manifest(choose(manifest, self._platform, where))
            manifest = parse_document(body, where)
        self._layers = layers_of(manifest, where)
        if digest != self._digest:
            _log.info("%s is %s%s", where, digest, " with a valid signature" if self._verifier else "")
        self._digest = digest
        return self._layers


def _batches(layers: Iterable[Layer]) -> Iterator[list[Layer]]:
    batch: list[Layer] = []
    for layer in layers:
        if batch and sum(queued.size for queued in batch) + layer.size > _BATCH_BYTES:
            yield batch
            batch = []
        batch.append(layer)
    if batch:
        yield batch
