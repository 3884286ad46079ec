"""The base of all sections of values. msgspec reads, checks and describes them; only this package imports it."""

from typing import Annotated, Any, TypeAlias

from msgspec import Meta, Struct

# Parts that are Kubernetes' own types: they are passed on as they are, and Kubernetes' schemas check them in tests.
KubernetesPart: TypeAlias = dict[str, Any]
_PREFIX = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
_LABEL = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
LabelValue = Annotated[str, Meta(pattern=f"^{_LABEL}$", max_length=63, examples=["blue", "team-1.b"])]
LabelKey = Annotated[str, Meta(pattern=f"^{_PREFIX}[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$")]
Labels: TypeAlias = dict[LabelKey, LabelValue]
Annotations: TypeAlias = dict[LabelKey, str]
SecretKey = Annotated[str, Meta(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]
VariableName = Annotated[str, Meta(pattern=r"^[ -<>-~]+$", examples=["NCCL_DEBUG"])]
# The name of another object, a DNS subdomain; "" for none.
ObjectName = Annotated[
    str, Meta(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$", max_length=253)
]
MAX_INT32 = 2**31 - 1  # of Kubernetes' numbers
Count = Annotated[int, Meta(ge=0, le=MAX_INT32)]
PositiveCount = Annotated[int, Meta(ge=1, le=MAX_INT32)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[int, Meta(ge=0, le=MAX_INT32)]
# A quantity of Kubernetes, such as 500m, 2, 4Gi.
Quantity = Annotated[str, Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?$", examples=["512Mi", "8Gi"])]


class Section(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=False):
    """A mapping of values with fixed keys: snake_case in Python, camelCase in YAML. Subclasses repeat `frozen=True`.

    Each field has a default and a description: `Annotated[int, Meta(ge=1, description="…")] = 1`. The description is
    the comment in values.yaml, the text of values.schema.json and the row of the page of values.
    """


class NamedSecret(Section, frozen=True):
    """A reference to a Secret, as in `imagePullSecrets` of a pod."""

    name: Annotated[ObjectName, Meta(min_length=1, description="Name of the Secret")]
