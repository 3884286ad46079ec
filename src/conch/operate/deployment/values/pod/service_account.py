"""The service account of the pods."""

from typing import Annotated

from msgspec import Meta, field

from conch.operate.deployment.values.section import Annotations, ObjectName, Section


class ServiceAccountValues(Section, frozen=True):
    """The service account. Its token is mounted only where the server reads limits from annotations."""

    create: Annotated[bool, Meta(description="Create the account; otherwise it exists")] = True
    name: Annotated[
        ObjectName, Meta(description="Name; without one that of the release, or `default` if it is not created")
    ] = ""
    annotations: Annotated[
        Annotations, Meta(description="Identity of the cloud, such as `eks.amazonaws.com/role-arn: …`")
    ] = field(default_factory=dict)
