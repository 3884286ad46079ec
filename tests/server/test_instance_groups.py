"""A load that only changes how many instances a model has keeps those that are there."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.models import tensor, write_python
from tests.support.server_process import ConchProcess

# Two requests at once reach both instances, if there are two: each waits for the other.
EXECUTE = """
together = int(request.inputs()[0].as_numpy()[0])
folder = os.path.join(pb_utils.get_model_dir(), "..", "..", "..", f"met{together}")
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, str(os.getpid())), "w").close()
while len(os.listdir(folder)) < together:
    time.sleep(0.001)
return pb_utils.InferenceResponse([pb_utils.Tensor("PID", np.array([os.getpid()], np.int32))])
"""


def config(count: int, more: str = "") -> str:
    group = f"instance_group {{ count: {count} kind: KIND_CPU }} {more}"
    return f"input {tensor('TOGETHER', 'INT32', 1)} output {tensor('PID', 'INT32', 1)} {group}"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_python(tmp_path / "models", "m", config(1), EXECUTE)
    return tmp_path / "models"


@pytest.fixture
def conch(models: Path, tmp_path: Path) -> Iterator[ConchProcess]:
    with ConchProcess(models, "--model-control-mode=explicit", "--load-model=m", log=tmp_path / "log") as process:
        yield process


def pids(conch: ConchProcess, together: int) -> set[int]:
    """The processes that answer `count` requests at once."""
    with http_client.InferenceServerClient(conch.http, concurrency=together) as client:
        taken = http_client.InferInput("TOGETHER", [1], "INT32")
        taken.set_data_from_numpy(np.array([together], np.int32))
        calls = [client.async_infer("m", [taken]) for _ in range(together)]
        return {int(call.get_result().as_numpy("PID")[0]) for call in calls}


def test_instances_come_and_go_one_by_one(conch: ConchProcess, models: Path) -> None:
    (first,) = pids(conch, 1)
    with http_client.InferenceServerClient(conch.http) as client:
        (models / "m" / "config.pbtxt").write_text('backend: "python" ' + config(2))
        client.load_model("m")
        both = pids(conch, 2)
        assert first in both
        assert len(both) == 2
        assert client.get_model_config("m")["instance_group"][0]["count"] == 2
        assert client.get_inference_statistics("m")["model_stats"][0]["inference_count"] == 3
        override = client.get_model_config("m")
        override["instance_group"][0]["count"] = 1
        client.load_model("m", config=json.dumps(override))
        with ThreadPoolExecutor(4) as pool:
            assert {pid for process_ids in pool.map(lambda _: pids(conch, 1), range(8)) for pid in process_ids} == {
                first
            }
    assert conch.text.count("rearranged the instances of 'm' version 1") == 2


def test_another_change_replaces_them_all(conch: ConchProcess, models: Path) -> None:
    (first,) = pids(conch, 1)
    with http_client.InferenceServerClient(conch.http) as client:
        (models / "m" / "config.pbtxt").write_text('backend: "python" ' + config(2, 'parameters { key: "a" }'))
        client.load_model("m")
        assert first not in pids(conch, 1)
        write_python(models, "m", config(2), EXECUTE, more="def initialize(self, args):\n    raise ValueError('no')")
        with pytest.raises(InferenceServerException, match="ValueError"):
            client.load_model("m")
        assert pids(conch, 1)


def test_a_broken_model_fails_at_its_first_instance(models: Path, conch: ConchProcess, tmp_path: Path) -> None:
    initialize = f"""
    def initialize(self, args):
        open("{tmp_path}/begun-" + args["model_instance_name"], "w").close()
        raise ValueError("broken")
    """
    write_python(models, "broken", config(1000), "return None", more=initialize)
    with http_client.InferenceServerClient(conch.http, network_timeout=120) as client:
        with pytest.raises(InferenceServerException, match="failed to initialize: ValueError: broken"):
            client.load_model("broken")
        assert len([*tmp_path.glob("begun-*")]) < 100
        assert client.is_model_ready("m")
