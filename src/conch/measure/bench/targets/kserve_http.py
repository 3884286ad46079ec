"""KServe v2 over HTTP: Triton, Conch, OpenVINO Model Server and others."""

from typing import Any
from urllib.parse import quote

from conch.measure.bench.targets.http_probe import HttpAnswer, HttpProbe
from conch.measure.bench.targets.server_api import (
    KeyNeeded,
    ListedModel,
    ServerApi,
    ServerIdentity,
    check_loading,
    model_of_metadata,
)
from conch.measure.bench.targets.target import TargetError, TargetModel

_LOCKED = (401, 403)
_UNAVAILABLE = 503


class KServeHttp(ServerApi):
    """The API below `base_path`."""

    def __init__(self, probe: HttpProbe, base_path: str) -> None:
        self._probe = probe
        self._base = base_path
        self.repository_index = False

    def identity(self) -> ServerIdentity | None:
        answer = self._probe.get(f"{self._base}/v2")
        check_key(answer)
        document = answer.json
        if answer.status != 200 or not isinstance(document, dict) or "name" not in document:
            return None
        extensions = document.get("extensions") or ()
        self.repository_index = "model_repository" in extensions
        return ServerIdentity(str(document["name"]), str(document.get("version", "")))

    def models(self) -> list[ListedModel] | None:
        answer = self._probe.post(f"{self._base}/v2/repository/index", {})
        rows = answer.json
        if answer.status != 200 or not isinstance(rows, list):
            return self._open_vino_models()
        return [listed(row) for row in rows]

    def model(self, name: str, version: str) -> TargetModel | None:
        path = model_path(self._base, name, version)
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
        answer = self._probe.get(f"{self._base}/v1/config")
        document = answer.json
        if answer.status != 200 or not isinstance(document, dict):
            return None
        found = []
        for name, entry in document.items():
            states = [row.get("state") for row in (entry or {}).get("model_version_status", ())]
            ready = "AVAILABLE" in states
            found.append(ListedModel(name, ready, "" if ready else ", ".join(map(str, states))))
        return found


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
