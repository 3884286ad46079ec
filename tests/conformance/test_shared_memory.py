"""System shared memory with the official clients: tensors in regions, over HTTP, gRPC and a stream."""

import os
import queue
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

from tests.server.models import ECHO, tensor, write_ensemble, write_identity, write_python
from tests.server.process import ConchProcess

Array = np.ndarray[Any, Any]

ADDSUB = """
a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("INPUT0", "INPUT1"))
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", a + b), pb_utils.Tensor("OUTPUT1", a - b)])
"""
REPEAT = """
sender = request.get_response_sender()
values = request.inputs()[0].as_numpy()
for number in range(3):
    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values + number)]))
sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Calls `python_floats` with what it was given.
FORWARD = """
inputs = request.inputs()
inner = pb_utils.InferenceRequest(model_name="python_floats", inputs=inputs, requested_output_names=["OUTPUT0"])
answer = inner.exec()
return pb_utils.InferenceResponse(answer.output_tensors())
"""
# Says that it has begun, and answers when it is told to, both by files.
WAIT = """
folder = json.loads(request.parameters())["folder"]
open(folder + "/begun", "w").close()
while not os.path.exists(folder + "/go"):
    time.sleep(0.01)
return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
"""


@pytest.fixture(scope="module")
def conch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    root = tmp_path_factory.mktemp("shared")
    models = root / "models"
    write_identity(models, "floats")
    write_identity(models, "bytes", "STRING")
    write_identity(models, "cached", extra="response_cache { enable: true }")
    floats = f"input {tensor('INPUT0', 'FP32', -1)} output {tensor('OUTPUT0', 'FP32', -1)}"
    write_python(models, "python_floats", floats, ECHO)
    write_python(models, "wait", floats, WAIT)
    write_python(models, "forward", floats, FORWARD)
    write_python(models, "python_cached", f"response_cache {{ enable: true }} {floats}", ECHO)
    write_python(
        models,
        "python_bytes",
        f"input {tensor('INPUT0', 'STRING', -1)} output {tensor('OUTPUT0', 'STRING', -1)}",
        ECHO,
    )
    pair = f"{tensor('INPUT0', 'INT32', 4)}, {tensor('INPUT1', 'INT32', 4)}"
    write_python(models, "addsub", f"input [{pair}] output [{pair.replace('INPUT', 'OUTPUT')}]", ADDSUB)
    write_python(models, "repeat", f"model_transaction_policy {{ decoupled: true }} {floats}", REPEAT)
    write_ensemble(
        models,
        "chain",
        f"input {tensor('IN', 'FP32', -1)}",
        f"output {tensor('OUT', 'FP32', -1)}",
        ("floats", {"INPUT0": "IN"}, {"OUTPUT0": "middle"}),
        ("python_floats", {"INPUT0": "middle"}, {"OUTPUT0": "OUT"}),
    )
    write_ensemble(
        models,
        "python_chain",
        f"input {tensor('IN', 'FP32', -1)}",
        f"output [{tensor('OUT', 'FP32', -1)}, {tensor('COPY', 'FP32', -1)}]",
        ("python_floats", {"INPUT0": "IN"}, {"OUTPUT0": "middle"}),
        ("floats", {"INPUT0": "IN"}, {"OUTPUT0": "COPY"}),
        ("forward", {"INPUT0": "middle"}, {"OUTPUT0": "OUT"}),
    )
    flags = ["--allow-client-shm=true", "--cache-config=local,size=16777216"]
    with ConchProcess(models, *flags, log=root / "conch.log") as server:
        yield server


class Regions:
    """One client, and the regions that it shares with the server; all of them are gone at the end."""

    def __init__(self, kind: str, conch: ConchProcess) -> None:
        self.kind = kind
        self.library: Any = http_client if kind == "http" else grpc_client
        self.address = conch.http if kind == "http" else conch.grpc
        self.client = self.library.InferenceServerClient(self.address)
        self.handles: dict[str, Any] = {}
        self.prefix = uuid4().hex[:12]

    def close(self) -> None:
        self.client.unregister_system_shared_memory()
        self.client.close()
        for handle in self.handles.values():
            shared_memory.destroy_shared_memory_region(handle)

    def key(self, name: str) -> str:
        return f"/conch-test-{self.prefix}-{name}"

    def share(self, name: str, size: int, *arrays: Array) -> None:
        """Make an object and register all of it."""
        self.handles[name] = shared_memory.create_shared_memory_region(name, self.key(name), size)
        if arrays:
            shared_memory.set_shared_memory_region(self.handles[name], list(arrays))
        self.client.register_system_shared_memory(name, self.key(name), size)

    def read(self, name: str, dtype: Any, shape: Any, offset: int = 0) -> Array:
        return shared_memory.get_contents_as_numpy(self.handles[name], dtype, shape, offset=offset)

    def input(
        self, region: str, size: int, shape: Any, datatype: str = "FP32", name: str = "INPUT0", offset: int = 0
    ) -> Any:
        one = self.library.InferInput(name, list(shape), datatype)
        one.set_shared_memory(region, size, offset)
        return one

    def output(self, region: str, size: int, name: str = "OUTPUT0", offset: int = 0) -> Any:
        one = self.library.InferRequestedOutput(name)
        one.set_shared_memory(region, size, offset)
        return one

    def refusal(self, *arguments: Any, **options: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            self.client.infer(*arguments, **options)
        return f"{caught.value.status()}: {caught.value.message()}"


@pytest.fixture(params=["http", "grpc"])
def regions(request: pytest.FixtureRequest, conch: ConchProcess) -> Iterator[Regions]:
    one = Regions(request.param, conch)
    yield one
    one.close()


FLOATS = np.arange(16, dtype=np.float32)
LARGE = np.random.default_rng(5).random(1_228_800, dtype=np.float32)
IN, OUT = FLOATS.nbytes, FLOATS.nbytes


@pytest.mark.parametrize("model", ["floats", "python_floats"])
@pytest.mark.parametrize("array", [FLOATS, LARGE], ids=["small", "large"])
def test_a_tensor_goes_in_and_comes_out(regions: Regions, model: str, array: Array) -> None:
    regions.share("in", array.nbytes, array)
    regions.share("out", array.nbytes)
    for turn in range(3):
        sent = array + turn
        shared_memory.set_shared_memory_region(regions.handles["in"], [sent])
        answer = regions.client.infer(
            model, [regions.input("in", array.nbytes, array.shape)], outputs=[regions.output("out", array.nbytes)]
        )
        np.testing.assert_array_equal(regions.read("out", np.float32, array.shape), sent)
        if regions.kind == "http":
            shape = list(array.shape)
            assert answer.get_output("OUTPUT0") == {"name": "OUTPUT0", "datatype": "FP32", "shape": shape}
        else:
            assert list(answer.get_output("OUTPUT0").shape) == list(array.shape)
            assert list(answer.get_response().raw_output_contents) == [b""]


@pytest.mark.parametrize("model", ["bytes", "python_bytes"])
def test_bytes_go_in_and_come_out(regions: Regions, model: str) -> None:
    array = np.array([b"", b"one", b"\x00\xff" * 50, "zwölf".encode()], dtype=np.object_)
    serialized = serialize_byte_tensor(array)
    size = len(serialized.item())
    regions.share("in", 4096, serialized)
    regions.share("out", 4096)
    regions.client.infer(
        model, [regions.input("in", size, array.shape, "BYTES")], outputs=[regions.output("out", 4000, offset=96)]
    )
    np.testing.assert_array_equal(regions.read("out", np.object_, array.shape, 96), array)


def test_bytes_that_are_none(regions: Regions) -> None:
    regions.share("in", 64, np.full(16, 2**31, np.uint32))
    text = regions.refusal("bytes", [regions.input("in", 64, [1], "BYTES")])
    assert "incomplete string data for inference input 'INPUT0'" in text


def test_several_tensors_lie_in_one_region(regions: Regions) -> None:
    """The second output over the first input, too, which has been read by then."""
    a, b = np.array([1, 2, 3, 4], np.int32), np.array([10, 20, 30, 40], np.int32)
    regions.share("all", 48, a, b)
    inputs = [regions.input("all", 16, [4], "INT32"), regions.input("all", 16, [4], "INT32", "INPUT1", 16)]
    outputs = [regions.output("all", 16, offset=32), regions.output("all", 16, "OUTPUT1")]
    regions.client.infer("addsub", inputs, outputs=outputs)
    np.testing.assert_array_equal(regions.read("all", np.int32, [12]), [*(a - b), *b, *(a + b)])


def test_some_tensors_travel(regions: Regions) -> None:
    a, b = np.array([1, 2, 3, 4], np.int32), np.array([10, 20, 30, 40], np.int32)
    regions.share("some", 32, b)
    travels = regions.library.InferInput("INPUT0", [4], "INT32").set_data_from_numpy(a)
    for shared_first in (False, True):
        inputs = [travels, regions.input("some", 16, [4], "INT32", "INPUT1")]
        outputs = [regions.library.InferRequestedOutput("OUTPUT0"), regions.output("some", 16, "OUTPUT1", 16)]
        if shared_first:
            inputs.reverse()
            outputs.reverse()
        answer = regions.client.infer("addsub", inputs, outputs=outputs)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), a + b)
        np.testing.assert_array_equal(regions.read("some", np.int32, [4], 16), a - b)


def test_two_names_of_one_object_may_overlap(regions: Regions) -> None:
    regions.share("whole", 8192, np.arange(2048, dtype=np.float32))
    # Not at the beginning of a page.
    regions.client.register_system_shared_memory("part", regions.key("whole"), 64, offset=4100)
    answer = regions.client.infer("floats", [regions.input("part", 64, [16])])
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), np.arange(1025, 1041))
    regions.client.infer("floats", [regions.input("whole", 60, [15])], outputs=[regions.output("part", 60, offset=4)])
    np.testing.assert_array_equal(regions.read("whole", np.float32, [17], 4096), [1024, 1025, *range(15)])


def test_an_ensemble_takes_and_gives_regions(regions: Regions) -> None:
    regions.share("in", IN, FLOATS)
    regions.share("out", OUT)
    inputs = [regions.input("in", IN, [16], name="IN")]
    regions.client.infer("chain", inputs, outputs=[regions.output("out", OUT, "OUT")])
    np.testing.assert_array_equal(regions.read("out", np.float32, [16]), FLOATS)


def test_steps_share_an_input_in_a_region(regions: Regions) -> None:
    """One of them fetches it for itself, the other for its process; what they make lies over it in the end."""
    regions.share("all", 2 * LARGE.nbytes, LARGE)
    inputs = [regions.input("all", LARGE.nbytes, LARGE.shape, name="IN")]
    outputs = [
        regions.output("all", LARGE.nbytes, "OUT", LARGE.nbytes),
        regions.output("all", LARGE.nbytes, "COPY"),
    ]
    regions.client.infer("python_chain", inputs, outputs=outputs)
    np.testing.assert_array_equal(regions.read("all", np.float32, [2, *LARGE.shape]), [LARGE, LARGE])


@pytest.mark.parametrize("array", [FLOATS, LARGE], ids=["small", "large"])
def test_a_model_calls_another_with_what_is_in_a_region(regions: Regions, array: Array) -> None:
    regions.share("all", array.nbytes, array)
    regions.client.infer(
        "forward",
        [regions.input("all", array.nbytes, array.shape)],
        outputs=[regions.output("all", array.nbytes)],
    )
    np.testing.assert_array_equal(regions.read("all", np.float32, array.shape), array)


def test_what_is_in_the_cache_is_not_the_clients_to_change(regions: Regions) -> None:
    unique = np.random.default_rng().random(100_000, dtype=np.float32)
    regions.share("in", unique.nbytes, unique)
    regions.share("out", unique.nbytes)
    for _ in range(3):
        inputs = [regions.input("in", unique.nbytes, unique.shape)]
        regions.client.infer("python_cached", inputs, outputs=[regions.output("out", unique.nbytes)])
        np.testing.assert_array_equal(regions.read("out", np.float32, unique.shape), unique)
        shared_memory.set_shared_memory_region(regions.handles["out"], [unique * 0])


def test_the_cache_knows_a_tensor_by_its_bytes(regions: Regions) -> None:
    regions.share("in", 2 * IN, FLOATS, FLOATS)
    regions.share("out", OUT)

    def hits() -> int:
        options = {} if regions.kind == "http" else {"as_json": True}
        found = regions.client.get_inference_statistics("cached", **options)["model_stats"][0]["inference_stats"]
        return int(found.get("cache_hit", {}).get("count", 0))

    unique = np.random.default_rng().random(16, dtype=np.float32)
    shared_memory.set_shared_memory_region(regions.handles["in"], [unique, unique])
    before = hits()
    for offset in (0, IN):
        shared_memory.set_shared_memory_region(regions.handles["out"], [np.zeros(16, np.float32)])
        outputs = [regions.output("out", OUT)]
        regions.client.infer("cached", [regions.input("in", IN, [16], offset=offset)], outputs=outputs)
        np.testing.assert_array_equal(regions.read("out", np.float32, [16]), unique)
    assert hits() == before + 1
    shared_memory.set_shared_memory_region(regions.handles["in"], [unique + 1])
    regions.client.infer("cached", [regions.input("in", IN, [16])], outputs=[regions.output("out", OUT)])
    np.testing.assert_array_equal(regions.read("out", np.float32, [16]), unique + 1)


# ---- registering


def test_what_is_registered_is_told(regions: Regions) -> None:
    regions.share("one", 4096)
    regions.client.register_system_shared_memory("two", regions.key("one"), 64, offset=128)

    def status(name: str = "") -> dict[str, Any]:
        if regions.kind == "http":
            return {row["name"]: row for row in regions.client.get_system_shared_memory_status(name)}
        rows = regions.client.get_system_shared_memory_status(name, as_json=True).get("regions", {})
        return {key: {"offset": 0} | row | {"byte_size": int(row["byte_size"])} for key, row in rows.items()}

    one = {"name": "one", "key": regions.key("one"), "offset": 0, "byte_size": 4096}
    two = {"name": "two", "key": regions.key("one"), "offset": 128, "byte_size": 64}
    assert {key: {**row, "offset": int(row["offset"])} for key, row in status().items()} == {"one": one, "two": two}
    assert list(status("two")) == ["two"]
    regions.client.unregister_system_shared_memory("two")
    regions.client.unregister_system_shared_memory("two")
    assert list(status()) == ["one"]
    with pytest.raises(InferenceServerException, match="Unable to find system shared memory region: 'two'"):
        status("two")
    regions.client.unregister_system_shared_memory()
    assert status() == {}


def test_a_server_that_allows_it_lists_the_extension(regions: Regions) -> None:
    metadata = regions.client.get_server_metadata()
    extensions = metadata["extensions"] if regions.kind == "http" else metadata.extensions
    assert "system_shared_memory" in extensions
    assert "cuda_shared_memory" not in extensions


PREFIX = "triton_python_backend_shm_region_"


@pytest.mark.parametrize(
    ("name", "key", "size", "offset", "text"),
    [
        ("r", "/conch-test-nonesuch", 64, 0, "Unable to open shared memory region: '/conch-test-nonesuch'"),
        ("r", "", 64, 0, "Unable to open shared memory region: ''"),
        ("r", "/", 64, 0, "Unable to open shared memory region: '/'"),
        ("r", "/..", 64, 0, "Unable to open shared memory region: '/..'"),
        ("r", "/../etc/passwd", 64, 0, "Unable to open shared memory region: '/../etc/passwd'"),
        ("r", "//etc/passwd", 64, 0, "Unable to open shared memory region: '//etc/passwd'"),
        ("r", "/a\0b", 64, 0, "Unable to open shared memory region: '/a"),
        ("r", "/" + "x" * 300, 64, 0, "File name too long"),
        ("r", f"/{PREFIX}1", 64, 0, f"contains the reserved prefix '{PREFIX}'"),
        ("r", PREFIX, 64, 0, f"contains the reserved prefix '{PREFIX}'"),
        ("r", None, 0, 0, "failed to register shared memory region 'r': invalid args"),
        ("r", None, 257, 0, "failed to register shared memory region 'r': invalid args"),
        ("r", None, 256, 1, "failed to register shared memory region 'r': invalid args"),
        ("r", None, 1, 256, "failed to register shared memory region 'r': invalid args"),
        ("r", None, 2**64 - 1, 2, "failed to register shared memory region 'r': invalid args"),
        ("there", None, 64, 0, "shared memory region 'there' already in manager"),
        ("", None, 64, 0, "'region name' is necessary to register system shared memory region"),
    ],
)
def test_what_cannot_be_registered(
    regions: Regions, name: str, key: str | None, size: int, offset: int, text: str
) -> None:
    regions.share("there", 256)
    if regions.kind == "http" and not name:
        return  # the official client has no such path
    with pytest.raises(InferenceServerException) as caught:
        regions.client.register_system_shared_memory(
            name, regions.key("there") if key is None else key, size, offset=offset
        )
    assert text in caught.value.message()
    exists = "already" in text and regions.kind == "grpc"
    expected = "400" if regions.kind == "http" else f"StatusCode.{'ALREADY_EXISTS' if exists else 'INVALID_ARGUMENT'}"
    assert caught.value.status() == expected


def test_what_is_no_memory_cannot_be_registered(regions: Regions, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(256))
    paths = [Path("/dev/shm", f"conch-test-{regions.prefix}-{kind}") for kind in ("link", "pipe", "folder")]
    paths[0].symlink_to(secret)
    os.mkfifo(paths[1])
    paths[2].mkdir()
    try:
        for path in paths:
            with pytest.raises(InferenceServerException, match="Unable to open shared memory region"):
                regions.client.register_system_shared_memory("r", f"/{path.name}", 64)
    finally:
        paths[0].unlink()
        paths[1].unlink()
        paths[2].rmdir()


def test_memory_of_a_gpu_is_refused_by_name(regions: Regions) -> None:
    regions.share("system", 64)
    with pytest.raises(InferenceServerException, match="failed to register CUDA shared memory region: 'c', GPUs not"):
        regions.client.register_cuda_shared_memory("c", b"A" * 88, 0, 64)
    with pytest.raises(InferenceServerException, match="Unable to find cuda shared memory region: 'c'"):
        regions.client.get_cuda_shared_memory_status("c")
    with pytest.raises(InferenceServerException, match="'system' is registered as system shared memory, not CUDA"):
        regions.client.get_cuda_shared_memory_status("system")
    assert not list(getattr(regions.client.get_cuda_shared_memory_status(), "regions", ()))
    regions.client.unregister_cuda_shared_memory("system")
    regions.client.unregister_cuda_shared_memory()
    regions.client.infer("floats", [regions.input("system", 64, [16])])


# ---- what goes wrong in a request


@pytest.mark.parametrize(
    ("region", "size", "offset", "text"),
    [
        ("zz", 64, 0, "Unable to find shared memory region: 'zz'"),
        ("all", 64, 256, "Invalid offset for shared memory region: 'all'"),
        ("all", 64, 2**62, "Invalid offset for shared memory region: 'all'"),
        ("all", 64, 196, "Invalid offset + byte size for shared memory region: 'all'"),
        ("all", 2**62, 8, "Invalid offset + byte size for shared memory region: 'all'"),
    ],
)
def test_bytes_outside_of_the_region(regions: Regions, region: str, size: int, offset: int, text: str) -> None:
    regions.share("all", 256)
    right_input, right_output = regions.input("all", 64, [16]), regions.output("all", 64)
    for inputs, outputs in (
        ([regions.input(region, size, [16], offset=offset)], [right_output]),
        ([right_input], [regions.output(region, size, offset=offset)]),
    ):
        refused = regions.refusal("floats", inputs, outputs=outputs)
        assert text in refused
        assert refused.startswith(("400", "StatusCode.INVALID_ARGUMENT", "404", "StatusCode.NOT_FOUND"))
        assert ("404" in refused or "NOT_FOUND" in refused) == (region == "zz")


@pytest.mark.parametrize("size", [0, 32, 128])
def test_an_input_of_another_size_than_its_shape(regions: Regions, size: int) -> None:
    regions.share("all", 256)
    text = f"input byte size mismatch for input 'INPUT0' for model 'floats'. Expected 64, got {size}"
    assert text in regions.refusal("floats", [regions.input("all", size, [16])])


@pytest.mark.parametrize("model", ["floats", "python_floats"])
@pytest.mark.parametrize("array", [FLOATS, LARGE], ids=["small", "large"])
def test_an_output_larger_than_its_place(regions: Regions, model: str, array: Array) -> None:
    size = array.nbytes
    regions.share("in", size, array)
    regions.share("out", size, array + 1)
    refused = regions.refusal(
        model, [regions.input("in", size, array.shape)], outputs=[regions.output("out", size - 8)]
    )
    text = f"shared memory size specified with the request for output 'OUTPUT0' ({size - 8} bytes) should be at least "
    assert f"{text}{size} bytes to hold the results" in refused
    np.testing.assert_array_equal(regions.read("out", np.float32, array.shape), array + 1)


def test_classes_are_not_put_into_regions(regions: Regions) -> None:
    regions.share("in", IN, FLOATS)
    output = regions.library.InferRequestedOutput("OUTPUT0", class_count=2)
    with pytest.raises(InferenceServerException):  # the client's own refusal
        output.set_shared_memory("in", 64)


def test_a_region_is_looked_up_each_time(regions: Regions) -> None:
    """Requests that repeat are recognised by their bytes; what those refer to may have changed."""
    travels = regions.library.InferInput("INPUT0", [16], "FP32").set_data_from_numpy(FLOATS)
    outputs = [regions.output("out", OUT)]
    regions.share("out", OUT)
    for turn in range(2):
        regions.client.infer("floats", [travels], outputs=outputs)
        np.testing.assert_array_equal(regions.read("out", np.float32, [16]), FLOATS, str(turn))
    regions.client.unregister_system_shared_memory("out")
    assert "Unable to find shared memory region: 'out'" in regions.refusal("floats", [travels], outputs=outputs)
    first = regions.handles.pop("out")
    regions.prefix += "x"
    regions.share("out", OUT)
    regions.client.infer("floats", [travels], outputs=outputs)
    np.testing.assert_array_equal(regions.read("out", np.float32, [16]), FLOATS)
    shared_memory.destroy_shared_memory_region(first)


# ---- regions that change or go


def test_a_request_outlives_its_regions(regions: Regions, tmp_path: Path) -> None:
    regions.share("in", IN, FLOATS)
    regions.share("out", OUT)

    def ask() -> None:
        inputs, outputs = [regions.input("in", IN, [16])], [regions.output("out", OUT)]
        with regions.library.InferenceServerClient(regions.address) as client:
            client.infer("wait", inputs, outputs=outputs, parameters={"folder": str(tmp_path)})

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask)
        try:
            while not (tmp_path / "begun").exists():
                assert not answer.done(), answer.exception()
                time.sleep(0.01)
            regions.client.unregister_system_shared_memory()
            # The name is free at once, and may be another region now.
            regions.client.register_system_shared_memory("out", regions.key("in"), IN)
            shared_memory.set_shared_memory_region(regions.handles["in"], [FLOATS * 0])
        finally:
            (tmp_path / "go").touch()
        answer.result(30)
    np.testing.assert_array_equal(regions.read("out", np.float32, [16]), FLOATS)
    assert not regions.read("in", np.float32, [16]).any()


@pytest.mark.parametrize("array", [FLOATS, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("model", ["floats", "python_floats"])
def test_an_object_may_be_unlinked(regions: Regions, model: str, array: Array) -> None:
    size = array.nbytes
    regions.share("all", 2 * size, array)
    path, moved = (Path("/dev/shm", regions.key(name)[1:]) for name in ("all", "moved"))
    path.rename(moved)
    try:
        for turn in range(2):
            inputs, outputs = [regions.input("all", size, array.shape)], [regions.output("all", size, offset=size)]
            regions.client.infer(model, inputs, outputs=outputs)
            np.testing.assert_array_equal(regions.read("all", np.float32, array.shape, size), array)
            if turn == 0:  # another object has the name now, and is none of ours
                path.write_bytes(bytes(2 * size))
        assert not any(path.read_bytes())
    finally:
        moved.rename(path)


@pytest.mark.parametrize("model", ["floats", "python_floats"])
@pytest.mark.parametrize("size", [8192, 1 << 18], ids=["small", "large"])
def test_an_object_that_was_cut_short_costs_the_request_only(regions: Regions, model: str, size: int) -> None:
    shape = [size // 4]
    regions.share("cut", size, np.ones(shape, np.float32))
    regions.share("whole", size, np.ones(shape, np.float32))
    path = Path("/dev/shm", regions.key("cut")[1:])
    os.truncate(path, 100)
    text = f"shared memory region 'cut' has only 100 of the {size} bytes that were registered, {size} are needed"
    assert text in regions.refusal(model, [regions.input("cut", size, shape)])
    whole = [regions.input("whole", size, shape)]
    assert text in regions.refusal(model, whole, outputs=[regions.output("cut", size)])
    assert path.stat().st_size == 100
    os.truncate(path, size)
    assert "register it again" in regions.refusal(model, [regions.input("cut", size, shape)])
    assert "register it again" in regions.refusal(model, whole, outputs=[regions.output("cut", size)])
    regions.client.unregister_system_shared_memory("cut")
    regions.client.register_system_shared_memory("cut", regions.key("cut"), size)
    answer = regions.client.infer(model, [regions.input("cut", size, shape)])
    assert answer.as_numpy("OUTPUT0").sum() == 25


# ---- streams


def test_a_stream_takes_and_gives_regions(conch: ConchProcess) -> None:
    regions = Regions("grpc", conch)
    answers: queue.Queue[Any] = queue.Queue()
    try:
        regions.share("in", IN, FLOATS)
        regions.share("out", OUT)
        regions.client.start_stream(lambda result, error: answers.put(error or result))
        for model, last in (("floats", FLOATS), ("repeat", FLOATS + 2)):
            regions.client.async_stream_infer(
                model,
                [regions.input("in", IN, [16])],
                outputs=[regions.output("out", OUT)],
                enable_empty_final_response=True,
            )
            while True:
                answer = answers.get(timeout=30)
                assert not isinstance(answer, Exception), answer
                if answer.get_response().parameters["triton_final_response"].bool_param:
                    break
            np.testing.assert_array_equal(regions.read("out", np.float32, [16]), last)
        regions.client.async_stream_infer("floats", [regions.input("nonesuch", IN, [16])], request_id="7")
        assert "Unable to find shared memory region: 'nonesuch'" in answers.get(timeout=30).message()
    finally:
        regions.client.stop_stream()
        regions.close()
