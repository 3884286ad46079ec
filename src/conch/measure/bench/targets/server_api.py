"""APIs of servers over HTTP as a benchmark asks them: KServe v2 (Triton, Conch, OpenVINO and others) and OpenAI's."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from conch.base.errors import ModelLoading
from conch.measure.bench.targets.http_probe import HttpAnswer, HttpProbe
from conch.measure.bench.targets.target import ModelKind, TargetError, TargetModel, TensorMetadata

# Where a server does not tell the largest batch.
UNKNOWN_BATCH = 2**31 - 1
_LOADING = re.compile(r"(?:model '[^']*' is loading|the server is reading its model repository) \(\d+ s so far.*?\)")
_TEXT_INPUT = "text_input"
_LOCKED = (401, 403)
_UNAVAILABLE = 503
_PATHS = ("/v1", "/v3")  # the latter is OpenVINO Model Server's


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
    if loading := _LOADING.search(message):
        raise ModelLoading(loading[0])


def server_name(name: str, version: str) -> str:
    """Return which server has this identity: Conch says that it is Triton, whose KServe v2 begins with version 2."""
    return "conch" if name == "triton" and version.startswith("0.") else name


class ServerApi(ABC):
    """One API of one server, below `base_path`. Methods raise TargetError."""

    base_path = ""
    repository_index = False  # whether it has the model repository extension
    known = ServerIdentity("", "")  # what `identity` returned last

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
    """Return a model from KServe's metadata and Triton's configuration, None if the server has none.

    Raises TargetError for what is not such a document.
    """
    try:
        return _model_of_metadata(metadata, config, version)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise TargetError(f"the server's description of model '{metadata.get('name')}' is not valid: {cause}") from None


def _model_of_metadata(metadata: Mapping[str, Any], config: Mapping[str, Any] | None, version: str) -> TargetModel:
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


class KServeHttp(ServerApi):
    """The API of Triton, Conch and others over HTTP."""

    def __init__(self, probe: HttpProbe, base_path: str) -> None:
        self._probe = probe
        self.base_path = base_path

    def identity(self) -> ServerIdentity | None:
        answer = self._probe.get(f"{self.base_path}/v2")
        check_key(answer)
        document = answer.json
        if answer.status != 200 or not isinstance(document, dict) or "name" not in document:
            return None
        extensions = document.get("extensions") or ()
        self.repository_index = "model_repository" in extensions
        return ServerIdentity(str(document["name"]), str(document.get("version", "")))

    def models(self) -> list[ListedModel] | None:
        answer = self._probe.post(f"{self.base_path}/v2/repository/index", {})
        rows = answer.json
        if answer.status != 200 or not isinstance(rows, list):
            return self._open_vino_models()
        return [listed(row) for row in rows]

    def model(self, name: str, version: str) -> TargetModel | None:
        path = model_path(self.base_path, name, version)
        answer = self._probe.get(path)
        if answer.status == _UNAVAILABLE:
            check_loading(answer.error_message())
        check_key(answer)
        metadata = answer.json
        if answer.status != 200 or not isinstance(metadata, dict):
            return None
        return model_of_metadata(metadata, self._config(path), version)

    def _config(self, path: str) -> dict[str, Any] | None:
        answer = self._probe.get(f"{path}/config")
        document = answer.json
        return document if answer.status == 200 and isinstance(document, dict) and "name" in document else None

    def _open_vino_models(self) -> list[ListedModel] | None:
        """Return the list of OpenVINO Model Server, which has no repository index."""
        answer = self._probe.get(f"{self.base_path}/v1/config")
        document = answer.json
        if answer.status != 200 or not isinstance(document, dict):
            return None
        models = []
        for name, entry in document.items():
            states = [row.get("state") for row in (entry or {}).get("model_version_status", ())]
            ready = "AVAILABLE" in states
            models.append(ListedModel(name, ready, "" if ready else ", ".join(map(str, states))))
        return models


def model_path(base_path: str, name: str, version: str) -> str:
    """Return the path of a model."""
    path = f"{base_path}/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def listed(row: dict[str, Any]) -> ListedModel:
    """Return a row of Triton's repository index. A model that was never loaded has no state."""
    state = str(row.get("state") or "")
    reason = str(row.get("reason") or "")
    shown = f"{state}: {reason}" if state and reason else state or "not loaded"
    ready = state == "READY"
    return ListedModel(str(row.get("name", "")), ready, "" if ready else shown, str(row.get("version") or ""))


def check_key(answer: HttpAnswer) -> None:
    """Raise KeyNeeded for an answer that refuses the client."""
    if answer.status in _LOCKED:
        raise KeyNeeded(
            f"{answer.path} needs a key (HTTP {answer.status}: {answer.error_message()}); give it with --api-key-file"
        )
    if answer.status >= 500:
        raise TargetError(f"{answer.path} answers {answer.status} {answer.reason}: {answer.error_message()}")


class OpenAiApi(ServerApi):
    """The API below one of the usual paths, or below `base_path` itself if it ends with one of them."""

    def __init__(self, probe: HttpProbe, base_path: str) -> None:
        self._probe = probe
        self._candidates = [base_path] if base_path.endswith(_PATHS) else [base_path + path for path in _PATHS]
        self._root = base_path[: -len(_PATHS[0])] if base_path.endswith(_PATHS) else base_path
        self._entries: dict[str, dict[str, Any]] = {}

    def identity(self) -> ServerIdentity | None:
        for path in self._candidates:
            answer = self._probe.get(f"{path}/models")
            check_key(answer)
            document = answer.json
            rows = document.get("data") if isinstance(document, dict) else None
            if answer.status == 200 and isinstance(rows, list):
                self.base_path = path
                self._entries = {str(row["id"]): row for row in rows if isinstance(row, dict) and "id" in row}
                return self._who(answer.headers.get("server") or "")
        return None

    def models(self) -> list[ListedModel] | None:
        return [ListedModel(name) for name in self._entries]

    def model(self, name: str, version: str) -> TargetModel | None:  # noqa: ARG002  the API has no versions
        entry = self._entries.get(name)
        if entry is None:
            return None
        known = "max_model_len" in entry
        length = entry.get("max_model_len")
        made = TargetModel(name, kind=ModelKind.EMBEDDINGS if known and length is None else ModelKind.LANGUAGE)
        return replace(made, context_length=length) if length and isinstance(length, int) else made

    def _who(self, software: str) -> ServerIdentity:
        """Return the server's name from the owner of its models, else from the header Server."""
        owners = {str(entry.get("owned_by") or "") for entry in self._entries.values()} - {""}
        name = owners.pop() if len(owners) == 1 else software
        answer = self._probe.get(f"{self._root}/version")
        document = answer.json
        version = document.get("version", "") if answer.status == 200 and isinstance(document, dict) else ""
        return ServerIdentity(name or software, str(version))
