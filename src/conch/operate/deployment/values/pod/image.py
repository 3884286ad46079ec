"""Which container image runs."""

from typing import Annotated, Literal

from msgspec import Meta

from conch.operate.deployment.values.section import NamedSecret, Section


class ImageValues(Section, frozen=True):
    """The server's image."""

    name: Annotated[
        str, Meta(description="The whole reference, such as registry/conch:1; it replaces repository, tag and digest")
    ] = ""
    repository: Annotated[str, Meta(min_length=1, description="Image without tag and digest")] = (
        "ghcr.io/conch-server/conch"
    )
    tag: Annotated[str, Meta(description="Tag; without one the version of the chart")] = ""
    digest: Annotated[
        str, Meta(pattern=r"^(sha256:[0-9a-f]{64})?$", description="sha256:…; it takes precedence over the tag")
    ] = ""
    pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"], Meta(description="When the kubelet pulls the image")
    ] = "IfNotPresent"
    pull_secrets: Annotated[
        tuple[NamedSecret, ...], Meta(description="Secrets with logins of the image's registry: `[{name: …}]`")
    ] = ()
