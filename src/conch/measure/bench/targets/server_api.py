"""The APIs that a server may have, seen alike: its name, its models and what they take."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conch.base.errors import ModelLoading
from conch.measure.bench.targets.target import ModelKind, TargetError, TargetModel, TensorMetadata

# Where a server does not tell the largest batch.
UNKNOWN_BATCH = 2**31 - 1
_LOADING = re.compile(r"(?:model '[^']*' is loading|the server is reading its model repository) \(\d+ s so far.*?\)")
_TEXT_INPUT = "text_input"


class KeyNeeded(TargetError):
    """The server refuses requests without a valid key."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A row of a server's list of models. `reason` says why it is not ready."""

    name: str
    ready: bool = True
    reason: str = ""
    version: str = ""

    @property
    def loading(self) -> bool:
        """Whether it is being loaded, as Triton's index has it."""
        return self.reason.partition(":")[0] == "LOADING"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Name and version as the server tells them, "" if it does not."""

    name: str
    version: str


def check_loading(message: str) -> None:
    """Raise ModelLoading for the error of a Conch server whose model is loading."""
    if found := _LOADING.search(message):
        raise ModelLoading(found[0])


def server_name(name: str, version: str) -> str:
    """Return which server has this identity: Conch says that it is Triton, whose KServe v2 begins with version 2."""
    return "conch" if name == "triton" and version.startswith("0.") else name


class ServerApi(ABC):
    """One API of one server. Methods raise TargetError."""

    @abstractmethod
    def identity(self) -> ServerIdentity | None:
        """Return who answers, or None if the server does not have this API. Raises KeyNeeded."""

    @abstractmethod
    def models(self) -> list[ListedModel] | None:
        """Return the models; None if the server cannot list them."""

    @abstractmethod
    def model(self, name: str, version: str) -> TargetModel | None:
        """Return what a model takes; None if it is unknown or not ready."""


def model_of_metadata(metadata: Mapping[str, Any], config: Mapping[str, Any] | None, version: str) -> TargetModel:
    """Return a model from KServe's metadata and Triton's configuration, None if the server has none."""
    inputs = list[Mapping[str, Any]](metadata.get("inputs") or ())
    outputs = list[Mapping[str, Any]](metadata.get("outputs") or ())
    details = {entry.get("name"): entry for entry in (config or {}).get("input", ())}
    if config is None:
        batch = UNKNOWN_BATCH if inputs and all(_shape(entry)[:1] == (-1,) for entry in inputs) else 0
        config = {}
    else:
        batch = int(config.get("max_batch_size") or 0)
    sequence = config.get("sequence_batching")
    return TargetModel(
        name=str(metadata.get("name", "")),
        version=version,
        kind=_kind(inputs),
        platform=str(metadata.get("platform", "")),
        inputs=tuple(_form(entry, details.get(entry["name"], {})) for entry in inputs),
        outputs=tuple(_form(entry, {}) for entry in outputs),
        max_batch_size=batch,
        decoupled=bool((config.get("model_transaction_policy") or {}).get("decoupled")),
        sequences=sequence is not None,
        text_sequence_ids=_text_ids(sequence or {}),
        config=config,
    )


def _kind(inputs: Sequence[Mapping[str, Any]]) -> ModelKind:
    texts = any(entry["name"] == _TEXT_INPUT and entry["datatype"] == "BYTES" for entry in inputs)
    return ModelKind.LANGUAGE if texts else ModelKind.TENSORS


def _shape(entry: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(int(dim) for dim in entry.get("shape") or ())  # protobuf's JSON has 64-bit integers as strings


def _form(entry: Mapping[str, Any], details: Mapping[str, Any]) -> TensorMetadata:
    layout = str(details.get("format") or "").removeprefix("FORMAT_")
    return TensorMetadata(
        name=str(entry["name"]),
        datatype=str(entry["datatype"]),
        shape=_shape(entry),
        optional=bool(details.get("optional")),
        layout=layout if layout in ("NCHW", "NHWC") else "",
    )


def _text_ids(sequence: Mapping[str, Any]) -> bool:
    return any(
        control.get("kind") == "CONTROL_SEQUENCE_CORRID" and control.get("data_type") == "TYPE_STRING"
        for entry in sequence.get("control_input") or ()
        for control in entry.get("control") or ()
    )
