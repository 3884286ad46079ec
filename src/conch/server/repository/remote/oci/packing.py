"""Pack models into an OCI image and push it, alone or above a base image, whose layers are copied.

Each model is one reproducible layer, so that only changed models are pushed.
"""

import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError
from conch.server.repository.remote.oci.manifest import LAYER, layers_of, parse_document, platforms_of
from conch.server.repository.remote.oci.registry import OCI_INDEX, OCI_MANIFEST, Registry

_CONFIG = "application/vnd.oci.image.config.v1+json"
_TITLE = "org.opencontainers.image.title"
_CHUNK_BYTES = 1024 * 1024
_BYTECODE = "__pycache__"  # written by the interpreter beside a Python model

# Models are made for any machine; of a base with more platforms, these are used.
_PLATFORMS = ("linux/amd64", "linux/arm64")
_OCI_NAMES = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
}


class ModelLayer:
    """A model's folder as a streamed tar file. It is not compressed, because weights hardly compress.

    Owners, times and modes are left out, so that the same files give the same digest on any machine. `prefix` is the
    folder of the model in the image, with a slash at its end, "" for the top.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self._folder = folder
        self._prefix = prefix
        self.name = folder.name

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the tar file. Raises ConfigError for a file that cannot be read."""
        if self._prefix:
            yield _header(self._prefix, directory=True)
        yield _header(f"{self._prefix}{self.name}", directory=True)
        for path in self._paths():
            name = f"{self._prefix}{self.name}/{path.relative_to(self._folder).as_posix()}"
            if path.is_dir():
                yield _header(name, directory=True)
                continue
            try:
                with path.open("rb") as stream:
                    size = path.stat().st_size
                    yield _header(name, size=size)
                    yield from iter(lambda: stream.read(_CHUNK_BYTES), b"")
            except OSError as error:
                raise ConfigError(f"'{path}' cannot be read: {error.strerror}") from error
            yield bytes(-size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)

    @cached_property
    def size_and_digest(self) -> tuple[int, str]:
        """The size of the tar file in bytes and its digest. Reads the whole model."""
        digest, size = sha256(), 0
        for chunk in self.content():
            digest.update(chunk)
            size += len(chunk)
        return size, f"sha256:{digest.hexdigest()}"

    def _paths(self) -> list[Path]:
        """Return the files and folders below the folder, sorted, with links followed."""
        paths: list[Path] = []
        for folder, folders, files in os.walk(self._folder, followlinks=True):
            folders[:] = [name for name in folders if name != _BYTECODE]
            paths += [Path(folder, name) for name in (*folders, *files)]
        return sorted(paths)


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes with their digest."""

    content: bytes

    @property
    def digest(self) -> str:
        """The digest as registries write it."""
        return f"sha256:{sha256(self.content).hexdigest()}"


@dataclass(frozen=True, slots=True)
class BaseImage:
    """An image below the models: the values of its configuration, and its layers as a manifest lists them."""

    config: Mapping[str, Any] = field(default_factory=lambda: {"architecture": "amd64", "os": "linux", "config": {}})
    layers: tuple[Mapping[str, Any], ...] = ()

    @property
    def platform(self) -> dict[str, Any]:
        """The platform as an index lists it."""
        return {key: self.config[key] for key in ("architecture", "os", "variant") if key in self.config}


def image_of(layers: Sequence[ModelLayer], base: BaseImage) -> tuple[Blob, Blob]:
    """Return the configuration and the manifest of an image of these layers above a base."""
    sizes = [layer.size_and_digest for layer in layers]
    below = base.config.get("rootfs", {}).get("diff_ids", [])
    document = {**base.config, "rootfs": {"type": "layers", "diff_ids": [*below, *(digest for _, digest in sizes)]}}
    if "history" in document:
        document["history"] = [
            *document["history"],
            *({"created_by": f"conch repo pack {layer.name}"} for layer in layers),
        ]
    config = _json(document)
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(config.content), "digest": config.digest},
            "layers": [
                *base.layers,
                *(
                    {"mediaType": LAYER, "size": size, "digest": digest, "annotations": {_TITLE: layer.name}}
                    for layer, (size, digest) in zip(layers, sizes, strict=True)
                ),
            ],
        }
    )
    return config, manifest


def index_of(manifests: Sequence[tuple[Blob, BaseImage]]) -> Blob:
    """Return the index of images for several platforms."""
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [
                {
                    "mediaType": OCI_MANIFEST,
                    "size": len(manifest.content),
                    "digest": manifest.digest,
                    "platform": base.platform,
                }
                for manifest, base in manifests
            ],
        }
    )


def _json(document: Any) -> Blob:
    return Blob(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def _header(name: str, *, size: int = 0, directory: bool = False) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o755 if directory else 0o644
    info.type = tarfile.DIRTYPE if directory else tarfile.REGTYPE
    return info.tobuf(tarfile.PAX_FORMAT)


def write_image(registry: Registry, tag: str, layers: Sequence[ModelLayer], base: Registry | None) -> str:
    """Push configurations and manifests of an image, and a base's layers; return the image's digest.

    The layers of the models must be in the registry. Raises ConfigError, NotFound, Unavailable.
    """
    bases = [BaseImage()] if base is None else _bases(base)
    manifests = []
    for image in bases:
        if base is not None:
            _copy_layers(base, registry, image)
        config, manifest = image_of(layers, image)
        _write(registry, config)
        manifests.append((manifest, image))
    if len(manifests) == 1:
        return registry.write_manifest(tag, manifests[0][0].content)
    for manifest, _ in manifests:
        registry.write_manifest(manifest.digest, manifest.content)
    return registry.write_manifest(tag, index_of(manifests).content)


def _bases(registry: Registry) -> list[BaseImage]:
    """Return the image of each supported platform."""
    where = str(registry)
    body, _ = registry.manifest(registry.reference)
    document = parse_document(body, where)
    if "manifests" not in document:
        return [_base(registry, document, where)]
    images = platforms_of(document, where)
    digests = [images[name] for name in _PLATFORMS if name in images]
    if not digests:
        raise ConfigError(f"{where}: has no image for {' or '.join(_PLATFORMS)}, only for {', '.join(images)}")
    return [_base(registry, parse_document(registry.manifest(digest)[0], where), where) for digest in digests]


def _base(registry: Registry, manifest: Any, where: str) -> BaseImage:
    layers_of(manifest, where)  # checks them
    try:
        digest, size = manifest["config"]["digest"], int(manifest["config"]["size"])
        config = parse_document(b"".join(registry.read_blob(digest, 0, size, size)), where)
        layers = [
            {
                "mediaType": _OCI_NAMES.get(layer["mediaType"], layer["mediaType"]),
                "size": layer["size"],
                "digest": layer["digest"],
            }
            for layer in manifest["layers"]
        ]
        if len(config["rootfs"]["diff_ids"]) != len(layers):
            raise ValueError(digest)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: the configuration of the image cannot be read") from error
    return BaseImage(config, tuple(layers))


def _copy_layers(source: Registry, target: Registry, image: BaseImage) -> None:
    for layer in image.layers:
        digest, size = layer["digest"], layer["size"]
        if not target.has_blob(digest):
            target.write_blob(digest, size, partial(source.read_blob, digest, 0, size, size))


def _write(registry: Registry, blob: Blob) -> None:
    if not registry.has_blob(blob.digest):
        registry.write_blob(blob.digest, len(blob.content), lambda: [blob.content])
