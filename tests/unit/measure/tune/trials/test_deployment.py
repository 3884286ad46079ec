import json
from pathlib import Path
from typing import Any

import pytest

from conch.measure.tune.deployment import Deployment
from conch.measure.tune.repository_client import RepositoryClient, ServerAccess, ServerRefusal


class RecordedLoads(RepositoryClient):
    """Records loads; refuses configurations of four instances."""

    loads: list[tuple[str, int]]

    def load(self, model: str, config: dict[str, Any] | None = None) -> None:
        count = (config or {}).get("instance_group", [{}])[0].get("count", 1)
        if count == 4:
            raise ServerRefusal(400, "too many")
        self.loads.append((model, count))


@pytest.fixture
def client() -> RecordedLoads:
    client = RecordedLoads(ServerAccess("http://localhost:1"))
    client.loads = []
    return client


def _document(backend: str) -> dict[str, Any]:
    return {"backend": backend, "max_batch_size": 8, "instance_group": [{"count": 1}]}


def test_only_what_differs_is_loaded(client: RecordedLoads) -> None:
    deployment = Deployment(client, "m", {"m": _document("python"), "s": _document("python")})
    assert not deployment.load({"load": 4})
    assert deployment.load({"load": 4, "s/instances": 2})
    assert not deployment.load({"load": 8, "s/instances": 2})
    with pytest.raises(ServerRefusal):
        deployment.load({"instances": 4, "s/instances": 2})
    assert deployment.load({"instances": 3})
    assert client.loads == [("s", 2), ("m", 3), ("s", 1)]


def test_settings_of_engines_go_to_their_files(client: RecordedLoads, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text('{"num_kv_blocks": 256}')
    deployment = Deployment(client, "chat", {"chat": _document("openvino_genai")}, {"chat": path})
    assert deployment.load({"max_sequences": 4})
    assert json.loads(path.read_text()) == {"num_kv_blocks": 256, "max_num_seqs": 4}
    ((_, before, after),) = deployment.engine_texts({"max_sequences": 8}).values()
    assert before == '{"num_kv_blocks": 256}'
    assert json.loads(after)["max_num_seqs"] == 8
    assert deployment.engine_texts({}) == {}
    assert deployment.load({})
    assert path.read_text() == '{"num_kv_blocks": 256}'
