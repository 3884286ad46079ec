"""Verify images by signatures with a key, as cosign stores them: a manifest with the tag `sha256-<digest>.sig`.

Each of its layers is a JSON document that names the digest of the image; an annotation of the layer has the ECDSA
signature of the document. The only module that imports `cryptography`.
"""

import binascii
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conch.base.errors import ConfigError, NotFound, Unavailable
from conch.base.extras import install_command
from conch.server.repository.remote.oci.manifest import parse_document
from conch.server.repository.remote.oci.registry import Registry

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

_PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE = "dev.cosignproject.cosign/signature"
_MAX_SIGNATURES = 100
_MAX_PAYLOAD_BYTES = 64 * 1024
_END = "-----END PUBLIC KEY-----"


class SignatureVerifier:
    """Public keys, of which one must have signed an image. A PEM file may contain several, for a change of keys."""

    def __init__(self, key_file: str) -> None:
        """Read the keys. Raises ConfigError."""
        self._file = key_file
        self._keys = list(_read_keys(key_file))

    def __str__(self) -> str:
        """The keys, to tell what they verified from what others did."""
        return "\n".join(_pem(key) for key in self._keys)

    def verify(self, registry: Registry, digest: str, where: str) -> None:
        """Check that a key has signed the manifest of this digest. Raises Unavailable."""
        try:
            body, _ = registry.manifest(f"{digest.replace(':', '-')}.sig")
        except NotFound as error:
            raise Unavailable(
                f"{where}: refused: {digest} is not signed; sign it with: cosign sign --key cosign.key …@{digest}"
            ) from error
        signed = {
            digest for digest in _signed_digests(registry, parse_document(body, where), self._keys, where) if digest
        }
        if not signed:
            raise Unavailable(f"{where}: refused: no signature of {digest} was made with the key in '{self._file}'")
        if digest not in signed:
            raise Unavailable(f"{where}: refused: the signature is for {', '.join(sorted(signed))}, not for {digest}")


def _signed_digests(
    registry: Registry, manifest: Mapping[str, Any], keys: list["EllipticCurvePublicKey"], where: str
) -> Iterator[str]:
    """Yield the image digest of each payload that one of the keys has signed."""
    try:
        for layer in manifest["layers"][:_MAX_SIGNATURES]:
            size = int(layer["size"])
            if layer["mediaType"] != _PAYLOAD or not 0 < size <= _MAX_PAYLOAD_BYTES:
                continue
            signature = b64decode(layer["annotations"][_SIGNATURE], validate=True)
            payload = b"".join(registry.read_blob(layer["digest"], 0, size, size))
            if any(_matches(key, signature, payload) for key in keys):
                yield str(json.loads(payload)["critical"]["image"]["docker-manifest-digest"])
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error, RecursionError) as error:
        raise Unavailable(f"{where}: refused: its signature cannot be read") from error


def _read_keys(key_file: str) -> Iterator["EllipticCurvePublicKey"]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise ConfigError(
            f"verifying signatures needs the package 'cryptography': {install_command('verify')}"
        ) from error
    try:
        text = Path(key_file).read_text(encoding="ascii")
        blocks = [f"{block}{_END}\n".encode() for block in text.split(_END)[:-1]]
        keys = [load_pem_public_key(block.lstrip()) for block in blocks]
    except OSError as error:
        raise ConfigError(f"the key '{key_file}' cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the key '{key_file}' is not a public key in PEM form, such as cosign.pub") from error
    if not keys:
        raise ConfigError(f"the key '{key_file}' is not a public key in PEM form, such as cosign.pub")
    for key in keys:
        if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
            raise ConfigError(f"the key '{key_file}' is not an ECDSA key of the curve P-256, as cosign generates them")
        yield key


def _matches(key: "EllipticCurvePublicKey", signature: bytes, payload: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        key.verify(signature, payload, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _pem(key: "EllipticCurvePublicKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
