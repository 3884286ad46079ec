"""Push an image of models, alone or above a base image, whose layers are copied."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from conch.base.errors import ConfigError
from conch.server.repository.remote.oci.manifest import layers_of, parse_document, platforms_of
from conch.server.repository.remote.oci.packing import BaseImage, Blob, ModelLayer, image_of, index_of
from conch.server.repository.remote.oci.registry import Registry

# Models are made for any machine; of a base with more platforms, these are used.
_PLATFORMS = ("linux/amd64", "linux/arm64")
_OCI_NAMES = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
}


def write_image(registry: Registry, tag: str, layers: Sequence[ModelLayer], base: Registry | None) -> str:
    """Push configurations and manifests of an image, and a base's layers; return the image's digest.

    The layers of the models must be in the registry. Raises ConfigError, NotFound, Unavailable.
    """
    bases = [BaseImage()] if base is None else _bases(base)
    manifests = []
    for each in bases:
        if base is not None:
            _copy_layers(base, registry, each)
        config, manifest = image_of(layers, each)
        _write(registry, config)
        manifests.append((manifest, each))
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
                "mediaType": _OCI_NAMES.get(one["mediaType"], one["mediaType"]),
                "size": one["size"],
                "digest": one["digest"],
            }
            for one in manifest["layers"]
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
