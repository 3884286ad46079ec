"""Read manifests and indexes of images. Pure."""

import json
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from conch.base.control_characters import printable
from conch.base.errors import ConfigError

LAYER = "application/vnd.oci.image.layer.v1.tar"
_LAYERS = (
    LAYER,
    f"{LAYER}+gzip",
    f"{LAYER}+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
)
_IMAGE_CONFIGS = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_SHA256 = "sha256:"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_SHOWN = 20  # platforms in a message
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


def this_platform() -> str:
    """Return the platform of this machine, such as linux/amd64."""
    return f"linux/{_MACHINES.get(platform.machine(), platform.machine())}"


def parse_document(body: bytes, where: str) -> Mapping[str, Any]:
    """Return a manifest or index as JSON values. Raises ConfigError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: the manifest is not JSON") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: the manifest is not a JSON object")
    return document


def layers_of(manifest: Mapping[str, Any], where: str) -> list[Layer]:
    """Return the layers of a manifest. Raises ConfigError for one that is not an image's."""
    try:
        return list(_layers(manifest, where))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ConfigError(f"{where}: not an OCI image: its manifest has no readable layers") from error


def platforms_of(index: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the images of an index: platform → digest. Attestations, whose platform is unknown, are left out."""
    digests: dict[str, str] = {}
    try:
        for image in index["manifests"]:
            target = image.get("platform") or {}
            name = f"{target.get('os', 'linux')}/{target.get('architecture', 'any')}"
            if target.get("os") != "unknown":
                digests.setdefault(name, _digest(image))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where}: the index of the image cannot be read") from error
    return digests


def choose(index: Mapping[str, Any], wanted: str, where: str) -> str:
    """Return the digest of the image for a platform, "" for this machine's or the only one. Raises ConfigError."""
    images = platforms_of(index, where)
    if not wanted and len(images) == 1:
        return next(iter(images.values()))
    name = wanted or this_platform()
    if name in images:
        return images[name]
    known = ", ".join(f"{printable(target[:100])} ({digest})" for target, digest in list(images.items())[:_MAX_SHOWN])
    raise ConfigError(
        f"{where}: has no image for {name}, only for {known or 'none'}; name one by its digest, as in {_named(where)}"
    )


def _named(where: str) -> str:
    name, slash, rest = where.partition("@")[0].rpartition("/")
    return f"{name}{slash}{rest.partition(':')[0]}@sha256:…"


def _layers(manifest: Mapping[str, Any], where: str) -> Iterator[Layer]:
    layers = manifest["layers"]
    if len(layers) > _MAX_LAYERS:
        raise ConfigError(f"{where}: has {len(layers)} layers; the limit is {_MAX_LAYERS}")
    artefact = str(manifest.get("artifactType") or manifest.get("config", {}).get("mediaType", ""))
    for descriptor in layers:
        kind = str(descriptor["mediaType"])
        if kind not in _LAYERS:
            of = "" if artefact in _IMAGE_CONFIGS else f" (an artefact of type '{printable(artefact[:100])}')"
            raise ConfigError(f"{where}: a layer has the type '{printable(kind[:100])}', which is not supported{of}")
        size = int(descriptor["size"])
        if not 0 <= size <= _MAX_LAYER_BYTES:
            raise ConfigError(f"{where}: a layer has {size} bytes; the limit is {_MAX_LAYER_BYTES}")
        digest = str(descriptor["digest"])
        if not _DIGEST.fullmatch(digest):
            raise ConfigError(f"{where}: a layer has the digest '{printable(digest[:100])}', which is not SHA-256")
        yield Layer(digest, size)


def _digest(descriptor: Mapping[str, Any]) -> str:
    digest = str(descriptor["digest"])
    if not _DIGEST.fullmatch(digest):
        raise TypeError(digest)
    return digest
