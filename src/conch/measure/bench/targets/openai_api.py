"""The OpenAI API: vLLM, Conch, OpenVINO Model Server and others."""

from dataclasses import replace
from typing import Any

from conch.measure.bench.targets.http_probe import HttpProbe
from conch.measure.bench.targets.kserve_http import check_key
from conch.measure.bench.targets.server_api import ListedModel, ServerApi, ServerIdentity
from conch.measure.bench.targets.target import ModelKind, TargetModel

_PATHS = ("/v1", "/v3")  # the latter is OpenVINO Model Server's


class OpenAiApi(ServerApi):
    """The API below one of the usual paths, or below `base_path` itself if it ends with one of them."""

    def __init__(self, probe: HttpProbe, base_path: str) -> None:
        self._probe = probe
        self._candidates = [base_path] if base_path.endswith(_PATHS) else [base_path + path for path in _PATHS]
        self._root = base_path[: -len(_PATHS[0])] if base_path.endswith(_PATHS) else base_path
        self._entries: dict[str, dict[str, Any]] = {}
        self.base_path = ""

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
        return replace(made, context_length=int(length)) if length else made

    def _who(self, software: str) -> ServerIdentity:
        """Return the server's name from the owner of its models, else from the header Server."""
        owners = {str(entry.get("owned_by") or "") for entry in self._entries.values()} - {""}
        name = owners.pop() if len(owners) == 1 else software
        answer = self._probe.get(f"{self._root}/version")
        document = answer.json
        version = document.get("version", "") if answer.status == 200 and isinstance(document, dict) else ""
        return ServerIdentity(name or software, str(version))
