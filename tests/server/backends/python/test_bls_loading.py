"""Models that load and unload others while they are being loaded themselves: nothing waits for itself for ever."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support.models import ECHO, tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

CONFIG = f"input {tensor('INPUT0', 'FP32', 1)} output {tensor('OUTPUT0', 'FP32', 1)}"


def write_loader(root: Path, name: str, initialize: str, count: int = 1) -> None:
    """A model that runs a line in `initialize`."""
    more = f"def initialize(self, args):\n    {initialize}"
    write_python(root, name, f"{CONFIG} instance_group {{ count: {count} }}", ECHO, more=more)


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("models")
    write_python(root, "plain", CONFIG, ECHO)
    write_loader(root, "itself", 'pb_utils.load_model("itself")')
    write_loader(root, "ends_itself", 'pb_utils.unload_model("ends_itself")')
    write_loader(root, "ping", 'pb_utils.load_model("pong")')
    write_loader(root, "pong", 'pb_utils.load_model("ping")')
    write_loader(root, "inner", 'pb_utils.load_model("outer")')
    step = ("inner", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"})
    write_ensemble(root, "outer", f"input {tensor('IN', 'FP32', 1)}", f"output {tensor('OUT', 'FP32', 1)}", step)
    write_loader(root, "robs", 'pb_utils.unload_model("plain")')
    steps = ("plain", {"INPUT0": "IN"}, {"OUTPUT0": "t"}), ("robs", {"INPUT0": "t"}, {"OUTPUT0": "OUT"})
    write_ensemble(root, "robbed", f"input {tensor('IN', 'FP32', 1)}", f"output {tensor('OUT', 'FP32', 1)}", *steps)
    write_loader(
        root, "caller", 'pb_utils.InferenceRequest(model_name="plain", inputs=[], requested_output_names=[]).exec()'
    )
    write_loader(root, "twice", 'pb_utils.load_model("plain")', count=2)
    # One load at a time: one that waits for another must not keep it from beginning.
    flags = ["--model-control-mode=explicit", "--model-load-thread-count=1"]
    with ConchProcess(root, *flags, log=root.parent / "log") as process:
        yield process


@pytest.fixture
def client(conch: ConchProcess) -> Iterator[http_client.InferenceServerClient]:
    with http_client.InferenceServerClient(conch.http, network_timeout=60) as client:
        yield client


@pytest.mark.parametrize(
    ("model", "circle"),
    [
        ("itself", "itself → itself"),
        ("ends_itself", "ends_itself → ends_itself"),
        ("ping", "pong → ping → pong"),
        ("inner", "outer → inner → outer"),
        ("outer", "inner → outer → inner"),
        ("robbed", "robs → robbed → robs"),
    ],
)
def test_a_load_that_waits_for_itself_is_refused(
    client: http_client.InferenceServerClient, model: str, circle: str
) -> None:
    with pytest.raises(InferenceServerException, match=f"a load would wait for itself: {circle}"):
        client.load_model(model)
    assert not client.is_model_ready(model)


def test_two_loads_that_would_wait_for_each_other(conch: ConchProcess) -> None:
    said: list[str] = []

    def load(model: str) -> None:
        with http_client.InferenceServerClient(conch.http, network_timeout=60) as client:
            try:
                client.load_model(model)
            except InferenceServerException as error:
                said.append(str(error))

    threads = [threading.Thread(target=load, args=[model]) for model in ("ping", "pong")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(said) == 2
    assert all("a load would wait for itself" in message for message in said)


def test_a_call_while_being_loaded_is_refused(client: http_client.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException, match="BLS is only supported during the 'execute' function"):
        client.load_model("caller")


def test_loads_of_several_instances_share_the_one_that_may_run(client: http_client.InferenceServerClient) -> None:
    client.load_model("twice")
    assert client.is_model_ready("twice")
    assert client.is_model_ready("plain")
