"""Secrets that exist in the namespace, and what the server uses them for. The chart never contains their values."""

from typing import Annotated

from msgspec import Meta, field

from conch.operate.deployment.values.section import ObjectName, SecretKey, Section


class HubTokenValues(Section, frozen=True):
    """The token of the Hugging Face Hub, as variable HF_TOKEN."""

    secret_name: Annotated[ObjectName, Meta(description="Secret with the token; empty: no token")] = ""
    key: Annotated[SecretKey, Meta(min_length=1, description="Key of the token in the Secret")] = "token"


class ApiKeysValues(Section, frozen=True):
    """The file of --api-key-file, mounted: docs/access.md. The server reads a changed file again."""

    secret_name: Annotated[ObjectName, Meta(description="Secret with the file; empty: no keys")] = ""
    key: Annotated[SecretKey, Meta(min_length=1, description="Key of the file in the Secret")] = "keys"


class TlsValues(Section, frozen=True):
    """TLS of the gRPC port. For HTTP, an ingress, a gateway or a service mesh terminates it."""

    secret_name: Annotated[ObjectName, Meta(description="Secret of type kubernetes.io/tls; empty: no TLS")] = ""
    mutual: Annotated[bool, Meta(description="Require a certificate of clients, signed by ca.crt of the Secret")] = (
        False
    )


class SecretsValues(Section, frozen=True):
    """References to Secrets."""

    hub_token: Annotated[HubTokenValues, Meta(description="Token of the Hugging Face Hub")] = field(
        default_factory=HubTokenValues
    )
    api_keys: Annotated[ApiKeysValues, Meta(description="API keys of clients")] = field(default_factory=ApiKeysValues)
    tls: Annotated[TlsValues, Meta(description="Certificate of the gRPC port")] = field(default_factory=TlsValues)
