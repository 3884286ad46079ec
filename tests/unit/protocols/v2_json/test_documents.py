import json

from conch.domain.model_config import ModelConfig, TensorSpec
from conch.domain.statistics.model_statistics import ModelStatistics, ResponseStatistics
from conch.protocols.v2_json import documents
from conch.server.core.catalog import IndexEntry


def config(max_batch_size: int, platform: str = "") -> ModelConfig:
    return ModelConfig(
        "m",
        "python",
        platform,
        max_batch_size,
        (TensorSpec("I", "FP32", (3, -1)),),
        (TensorSpec("O", "BYTES", (1,)),),
        document={"name": "m", "max_queue_delay_microseconds": 2**60},
    )


def test_metadata_shows_the_batch_dimension():
    document = json.loads(documents.model_metadata(config(4), [1, 12]))
    assert document == {
        "name": "m",
        "versions": ["1", "12"],
        "platform": "python",
        "inputs": [{"name": "I", "datatype": "FP32", "shape": [-1, 3, -1]}],
        "outputs": [{"name": "O", "datatype": "BYTES", "shape": [-1, 1]}],
    }
    document = json.loads(documents.model_metadata(config(0, "onnxruntime_onnx"), []))
    assert document["platform"] == "onnxruntime_onnx"
    assert document["inputs"][0]["shape"] == [3, -1]


def test_large_integers_of_a_configuration_are_numbers():
    assert documents.model_config(config(0)) == b'{"name":"m","max_queue_delay_microseconds":1152921504606846976}'


def test_statistics():
    statistics = ModelStatistics("m", 2)
    statistics.count_success(3, total=150, queue=20, compute_input=30, compute_infer=40, compute_output=50)
    statistics.count_execution(3, started=130, input_done=160, infer_done=200, done=250)
    statistics.responses[0] = ResponseStatistics()
    statistics.responses[0].success.add(7)
    (document,) = json.loads(documents.model_statistics([statistics]))["model_stats"]
    assert list(document) == [
        "name",
        "version",
        "last_inference",
        "inference_count",
        "execution_count",
        "inference_stats",
        "response_stats",
        "batch_stats",
        "memory_usage",
    ]
    assert (document["version"], document["inference_count"], document["execution_count"]) == ("2", 3, 1)
    assert document["inference_stats"]["success"] == {"count": 1, "ns": 150}
    assert document["inference_stats"]["queue"] == {"count": 1, "ns": 20}
    assert document["inference_stats"]["cache_miss"] == {"count": 0, "ns": 0}
    assert document["batch_stats"] == [
        {
            "batch_size": 3,
            "compute_input": {"count": 1, "ns": 30},
            "compute_infer": {"count": 1, "ns": 40},
            "compute_output": {"count": 1, "ns": 50},
        }
    ]
    assert document["response_stats"]["0"]["success"] == {"count": 1, "ns": 7}


def test_the_index_omits_empty_members():
    rows = [IndexEntry("a", "1", "READY"), IndexEntry("b", "2", "UNAVAILABLE", "unloaded"), IndexEntry("c")]
    assert json.loads(b"".join(documents.index_pieces(rows))) == [
        {"name": "a", "version": "1", "state": "READY"},
        {"name": "b", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"},
        {"name": "c"},
    ]


def test_any_message_can_be_an_error():
    assert documents.error('say "ä"') == '{"error":"say \\"ä\\""}'.encode()
    assert json.loads(documents.error("half \ud800 a pair")) == {"error": "half \\ud800 a pair"}
