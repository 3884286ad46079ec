"""One server for all conformance tests, with the models that they ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.conformance.regions import Regions, write_region_models
from tests.support.models import ECHO, tensor, write_config, write_ensemble, write_identity, write_python
from tests.support.server_process import ConchProcess

ADDSUB = """
a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
c = pb_utils.get_input_tensor_by_name(request, "OPT")
c = 0 if c is None else c.as_numpy()
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b + c), pb_utils.Tensor("OUTPUT1", a - b)])
"""

FAULTY = """
text = request.inputs()[0].as_numpy()[0].decode()
if text == "raise":
    raise RuntimeError("boom")
if text == "error":
    return pb_utils.InferenceResponse(error=pb_utils.TritonError("custom err", pb_utils.TritonError.NOT_FOUND))
if text == "none":
    return None
if text == "undeclared":
    return pb_utils.InferenceResponse([pb_utils.Tensor("OTHER", np.zeros(1, np.float32))])
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([text], dtype=object))])
"""

REPEAT = """
sender = request.get_response_sender()
count = int(request.inputs()[0].as_numpy().ravel()[0])
for i in range(count):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([i], np.int32))]))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def write_models(root: Path) -> None:
    """Write every model that a conformance test names."""
    four = [4]
    write_python(
        root,
        "addsub",
        "max_batch_size: 4 input ["
        f"{tensor('INPUT0', 'INT32', *four)}, {tensor('INPUT1', 'INT32', *four)}, "
        f"{tensor('OPT', 'INT32', *four, extra='optional: true')}] "
        f"output [{tensor('OUTPUT0', 'INT32', *four)}, {tensor('OUTPUT1', 'INT32', *four)}]",
        ADDSUB,
    )
    write_python(
        root,
        "faulty",
        f"input {tensor('INPUT0', 'STRING', 1)} output {tensor('OUTPUT0', 'STRING', 1)}",
        FAULTY,
    )
    write_python(
        root,
        "repeat",
        f"model_transaction_policy {{ decoupled: true }} "
        f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}",
        REPEAT,
    )
    for datatype in ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32"):
        write_identity(root, f"identity_{datatype.lower()}", datatype)
    write_identity(root, "identity_fp64", "FP64")
    write_identity(root, "identity_bytes", "STRING")
    write_identity(root, "identity_bf16", "BF16")
    write_python(
        root,
        "python_bytes",
        f"input {tensor('INPUT0', 'STRING', -1)} output {tensor('OUTPUT0', 'STRING', -1)}",
        ECHO,
    )
    write_config(
        root,
        "scores",
        f'backend: "identity" max_batch_size: 2 input {tensor("INPUT0", "FP32", 4)} '
        f"output {tensor('OUTPUT0', 'FP32', 4, extra='label_filename: ' + chr(34) + 'labels.txt' + chr(34))}",
    )
    (root / "scores" / "labels.txt").write_text("ant\nbee\ncat\n")
    write_identity(
        root,
        "slow",
        "FP32",
        1,
        batch=1,
        extra="dynamic_batching { default_queue_policy { max_queue_size: 1 default_timeout_microseconds: 100000 } } "
        'parameters { key: "execute_delay_ms" value { string_value: "400" } }',
    )
    write_ensemble(
        root,
        "chain",
        f"input {tensor('IN', 'STRING', 1)}",
        f"output {tensor('OUT', 'STRING', 1)}",
        ("identity_bytes", {"INPUT0": "IN"}, {"OUTPUT0": "middle"}),
        ("faulty", {"INPUT0": "middle"}, {"OUTPUT0": "OUT"}),
    )
    write_config(root, "broken", 'backend: "nonesuch"', 1)


@pytest.fixture(scope="package")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    """A running server."""
    root = tmp_path_factory.mktemp("conformance")
    write_models(root / "models")
    flags = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false", "--strict-readiness=false"]
    with ConchProcess(root / "models", *flags, log=root / "conch.log") as server:
        yield server


@pytest.fixture(scope="package")
def memory_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    """A running server that clients may share memory with."""
    root = tmp_path_factory.mktemp("shared")
    write_region_models(root / "models")
    flags = ["--allow-client-shm=true", "--cache-config=local,size=16777216"]
    with ConchProcess(root / "models", *flags, log=root / "conch.log") as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def regions(request: pytest.FixtureRequest, memory_server: ConchProcess) -> Iterator[Regions]:
    """A client of each protocol."""
    client = Regions(request.param, memory_server)
    yield client
    client.close()
