"""Where the models come from."""

from typing import Annotated

from msgspec import Meta, field

from conch.operate.deployment.values.section import KubernetesPart, ObjectName, Quantity, Section


class ModelRepositoryValues(Section, frozen=True):
    """The model repository: a path, and at most one of claimName, image, pull and volume that is mounted there."""

    path: Annotated[
        str,
        Meta(
            pattern=r"^(/.+|(s3|gs|as|oci|https?)://.+)$",
            description="--model-repository: a folder, or a URL of s3://, gs://, as://, oci://, https://",
        ),
    ] = "/models"
    claim_name: Annotated[
        ObjectName, Meta(description="PersistentVolumeClaim with the repository, mounted read-only")
    ] = ""
    sub_path: Annotated[str, Meta(description="Folder of the repository in the volume")] = ""
    image: Annotated[
        str, Meta(description="OCI image with the repository, mounted as image volume; Kubernetes 1.31 or later")
    ] = ""
    pull: Annotated[
        str, Meta(description="OCI image that an init container copies: `conch repo pull`; works in every cluster")
    ] = ""
    pull_args: Annotated[
        tuple[str, ...], Meta(description="More arguments of `conch repo pull`, such as --model=…")
    ] = ()
    volume: Annotated[
        KubernetesPart, Meta(description="Any other volume with the repository, such as `hostPath: {path: …}` or nfs")
    ] = field(default_factory=dict)
    size: Annotated[Quantity, Meta(description="Size limit of the volume that `pull` fills")] = "50Gi"
    credentials_secret: Annotated[
        ObjectName,
        Meta(description="Secret whose keys are variables of the server, such as AWS_ACCESS_KEY_ID; better: roles"),
    ] = ""
    registry_secret: Annotated[
        ObjectName,
        Meta(description="Secret of type kubernetes.io/dockerconfigjson: login for `pull` and for oci:// URLs"),
    ] = ""
