"""The unmodified official clients, HTTP and gRPC, against the running server: the same questions over both."""

import json
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.support.server_process import ConchProcess

DATATYPES = ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64"]

NO_BACKEND = (
    "load failed for model 'broken': version 1 is at UNAVAILABLE state: Invalid argument: unable to find backend "
    "library for backend 'nonesuch', try specifying runtime on the model configuration"
)


class Client:
    """One face for both clients, whose calls differ in their shapes."""

    def __init__(self, kind: str, conch: ConchProcess) -> None:
        self.kind = kind
        self.module: Any = triton_http if kind == "http" else triton_grpc
        self.client = self.module.InferenceServerClient(conch.http if kind == "http" else conch.grpc)

    def ask(self, model: str, arrays: dict[str, np.ndarray[Any, Any]], datatype: str = "", **options: Any) -> Any:
        inputs = []
        for name, array in arrays.items():
            kind = datatype or _datatype(array)
            tensor = self.module.InferInput(name, list(array.shape), kind)
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        return self.client.infer(model, inputs, **options)

    def plain(self, answer: Any) -> Any:
        """An answer as JSON values, whichever client gave it."""
        if self.kind == "http":
            return answer
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(answer, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _datatype(array: np.ndarray[Any, Any]) -> str:
    from tritonclient.utils import np_to_triton_dtype

    return str(np_to_triton_dtype(array.dtype))


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, conch: ConchProcess) -> Iterator[Client]:
    client = Client(request.param, conch)
    yield client
    client.client.close()


@pytest.mark.parametrize("datatype", DATATYPES)
def test_every_datatype_comes_back_as_it_went(client: Client, datatype: str) -> None:
    values = np.array([0, 1, 1, 0, 100], dtype=np.int64).astype(triton_to_np_dtype(datatype))
    result = client.ask(f"identity_{datatype.lower()}", {"INPUT0": values})
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)
    assert result.as_numpy("OUTPUT0").dtype == values.dtype


@pytest.mark.parametrize("model", ["identity_bytes", "python_bytes"])
def test_bytes_of_any_content(client: Client, model: str) -> None:
    values = np.array([b"", b"\0\xff", "grün".encode(), b"x" * 70_000], dtype=object)
    result = client.ask(model, {"INPUT0": values})
    assert list(result.as_numpy("OUTPUT0")) == list(values)


def test_bfloat16(client: Client) -> None:
    values = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    result = client.ask("identity_bf16", {"INPUT0": values}, "BF16")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)


def test_a_large_tensor(client: Client) -> None:
    values = np.random.default_rng(1).random(2_000_000).astype(np.float32)
    np.testing.assert_array_equal(client.ask("identity_fp32", {"INPUT0": values}).as_numpy("OUTPUT0"), values)


def test_a_batch_with_an_optional_input(client: Client) -> None:
    a = np.arange(8, dtype=np.int32).reshape(2, 4)
    result = client.ask("addsub", {"INPUT0": a, "INPUT1": a, "OPT": a}, request_id="seven")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), 3 * a)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), 0 * a)
    response = client.plain(result.get_response())
    assert (response["id"], response["model_name"], response["model_version"]) == ("seven", "addsub", "1")


def test_only_the_outputs_asked_for(client: Client) -> None:
    a = np.ones((1, 4), np.int32)
    wanted = [client.module.InferRequestedOutput("OUTPUT1")]
    result = client.ask("addsub", {"INPUT0": a, "INPUT1": a}, outputs=wanted)
    assert result.as_numpy("OUTPUT0") is None
    np.testing.assert_array_equal(result.as_numpy("OUTPUT1"), 0 * a)


def test_classification_with_labels(client: Client) -> None:
    scores = np.array([[0.1, 0.7, 0.2, 0.0], [4, 3, 2, 1]], np.float32)
    wanted = [client.module.InferRequestedOutput("OUTPUT0", class_count=2)]
    result = client.ask("scores", {"INPUT0": scores}, outputs=wanted).as_numpy("OUTPUT0")
    assert result.tolist() == [
        [b"0.700000:1:bee", b"0.200000:2:cat"],
        [b"4.000000:0:ant", b"3.000000:1:bee"],
    ]


def test_an_error_is_the_models_own(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="custom err") as caught:
        client.ask("faulty", {"INPUT0": np.array([b"error"], dtype=object)})
    assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")


def test_an_unknown_model(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'nope' is not found"):
        client.ask("nope", {"INPUT0": np.zeros(1, np.float32)})


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression_both_ways(client: Client, algorithm: str) -> None:
    values = np.zeros(10_000, np.float32)
    options = (
        {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
        if client.kind == "http"
        else {"compression_algorithm": algorithm}
    )
    result = client.ask("identity_fp32", {"INPUT0": values}, **options)
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), values)


def test_health_and_readiness(client: Client) -> None:
    assert client.client.is_server_live()
    assert client.client.is_server_ready()
    assert client.client.is_model_ready("addsub")
    assert client.client.is_model_ready("addsub", "1")
    assert not client.client.is_model_ready("addsub", "9")
    assert not client.client.is_model_ready("broken")
    assert not client.client.is_model_ready("nope")


def test_metadata(client: Client) -> None:
    server = client.plain(client.client.get_server_metadata())
    assert server["name"] == "triton"
    model = client.plain(client.client.get_model_metadata("addsub"))
    assert (model["name"], model["versions"], model["platform"]) == ("addsub", ["1"], "python")
    assert [(t["name"], t["datatype"]) for t in model["inputs"]] == [
        ("INPUT0", "INT32"),
        ("INPUT1", "INT32"),
        ("OPT", "INT32"),
    ]
    assert [int(size) for size in model["inputs"][0]["shape"]] == [-1, 4]


def test_the_configuration_is_complete(client: Client) -> None:
    answer = client.plain(client.client.get_model_config("slow"))
    config = answer["config"] if client.kind == "grpc" else answer
    assert config["backend"] == "identity"
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    batching = config["dynamic_batching"]
    assert list(batching["preferred_batch_size"]) == [1]
    assert int(batching["default_queue_policy"]["default_timeout_microseconds"]) == 100_000


def test_statistics_and_metrics_tell_the_same(client: Client, conch: ConchProcess) -> None:
    a = np.ones((3, 4), np.int32)
    for _ in range(3):
        client.ask("addsub", {"INPUT0": a, "INPUT1": a})
    (statistics,) = client.plain(client.client.get_inference_statistics("addsub"))["model_stats"]
    samples = {
        family.name: sample.value
        for family in text_string_to_metric_families(conch.metrics())
        for sample in family.samples
        if sample.labels.get("model") == "addsub" and "reason" not in sample.labels
    }
    assert int(statistics["inference_count"]) == samples["nv_inference_count"] >= 9
    assert int(statistics["execution_count"]) == samples["nv_inference_exec_count"]
    assert int(statistics["inference_stats"]["success"]["count"]) == samples["nv_inference_request_success"]
    assert int(statistics["inference_stats"]["queue"]["ns"]) // 1000 == samples["nv_inference_queue_duration_us"]
    assert any(int(batch["batch_size"]) == 3 for batch in statistics["batch_stats"])


def test_ensembles_count_for_themselves_and_for_their_steps(client: Client, conch: ConchProcess) -> None:
    def counts() -> dict[str, int]:
        answer = client.plain(client.client.get_inference_statistics())
        names = [row["name"] for row in answer["model_stats"]]
        assert names == sorted(names)
        return {row["name"]: int(row["inference_stats"]["success"]["count"]) for row in answer["model_stats"]}

    before = counts()
    result = client.ask("chain", {"IN": np.array([b"hi"], dtype=object)})
    assert result.as_numpy("OUT").tolist() == [b"hi"]
    after = counts()
    assert {name for name in after if after[name] > before[name]} == {"chain", "identity_bytes", "faulty"}


def test_load_and_unload(client: Client) -> None:
    def state() -> dict[str, str]:
        index = client.plain(client.client.get_model_repository_index())
        models = index if client.kind == "http" else index["models"]
        return {model["name"]: model.get("state", "") for model in models}

    assert state()["scores"] == "READY"
    client.client.unload_model("scores")
    assert not client.client.is_model_ready("scores")
    client.client.load_model("scores")
    assert state()["scores"] == "READY"


def test_a_load_with_a_configuration_in_the_request(client: Client) -> None:
    answer = client.plain(client.client.get_model_config("identity_int8"))
    config = answer["config"] if client.kind == "grpc" else answer
    try:
        client.client.load_model("identity_int8", config=json.dumps({**config, "max_batch_size": 3}))
        changed = client.plain(client.client.get_model_config("identity_int8"))
        assert (changed["config"] if client.kind == "grpc" else changed)["max_batch_size"] == 3
    finally:
        client.client.unload_model("identity_int8")
        client.client.load_model("identity_int8")


def test_a_load_that_cannot_be(client: Client) -> None:
    with pytest.raises(InferenceServerException, match="failed to load 'nope', failed to poll from model repository"):
        client.client.load_model("nope")
    with pytest.raises(InferenceServerException, match=NO_BACKEND):
        client.client.load_model("broken")
    index = client.plain(client.client.get_model_repository_index())
    entries = index["models"] if client.kind == "grpc" else index
    (broken,) = [entry for entry in entries if entry["name"] == "broken"]
    assert broken["reason"].startswith("Invalid argument: unable to find backend library for backend 'nonesuch'")


def test_a_full_queue_and_a_timeout_differ(client: Client, conch: ConchProcess) -> None:
    """One request executes, one waits until its time is up, the third finds the queue full.

    If they come at once, which a busy machine delays: then others are sent.
    """
    from concurrent.futures import ThreadPoolExecutor

    def ask(number: int) -> str:
        asking = Client(client.kind, conch)
        try:
            asking.ask("slow", {"INPUT0": np.zeros((1, 1), np.float32)}, request_id="" if number % 2 else "me")
        except InferenceServerException as error:
            return f"{error.status()}: {error.message()}"
        finally:
            asking.client.close()
        return "answered"

    refused = "503" if client.kind == "http" else "StatusCode.UNAVAILABLE"
    full = {f"{refused}: [request id: {name}] Exceeds maximum queue size" for name in ("<id_unknown>", "me")}
    expected = {"answered", f"{refused}: Request timeout expired", *full}
    answers: set[str] = set()
    with ThreadPoolExecutor(4) as pool:
        while len(answers) < len(expected):
            answers.update(pool.map(ask, range(4)))
            assert answers <= expected
