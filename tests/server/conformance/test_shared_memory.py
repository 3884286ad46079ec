"""System shared memory with the official clients: tensors in regions, over HTTP, gRPC and a stream."""

import os
import queue
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, serialize_byte_tensor, shared_memory

from tests.server.conformance.regions import FLOATS, IN, LARGE, OUT, Array, Regions
from tests.support.server_process import ConchProcess


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
        counts = regions.client.get_inference_statistics("cached", **options)["model_stats"][0]["inference_stats"]
        return int(counts.get("cache_hit", {}).get("count", 0))

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


def test_regions_are_listed_by_name(regions: Regions) -> None:
    for name in ("out", "in", "also"):
        regions.share(name, IN)
    rows = regions.client.get_system_shared_memory_status()
    if isinstance(rows, list):  # a map in gRPC
        assert [row["name"] for row in rows] == ["also", "in", "out"]


# ---- regions that change or go


def test_regions_in_use_stay_registered(regions: Regions, tmp_path: Path) -> None:
    for name in ("in", "out", "other"):
        regions.share(name, IN, FLOATS)

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
            for name in ("in", "out"):
                with pytest.raises(InferenceServerException) as caught:
                    regions.client.unregister_system_shared_memory(name)
                assert caught.value.message() == (
                    f"Cannot unregister shared memory region '{name}', it is currently in use."
                )
                assert caught.value.status() == ("500" if regions.kind == "http" else "StatusCode.INTERNAL")
            with pytest.raises(InferenceServerException) as caught:
                regions.client.unregister_system_shared_memory()
            assert caught.value.message() == (
                "Failed to unregister the following system shared memory regions: in ,out ,"
            )
            status = regions.client.get_system_shared_memory_status()
            rows = status if regions.kind == "http" else status.regions.values()
            assert len(rows) == 2  # "other" was unregistered
            shared_memory.set_shared_memory_region(regions.handles["in"], [FLOATS * 0])
        finally:
            (tmp_path / "go").touch()
        answer.result(30)
    np.testing.assert_array_equal(regions.read("out", np.float32, [16]), FLOATS)
    assert not regions.read("in", np.float32, [16]).any()
    for name in ("in", "out"):
        regions.client.unregister_system_shared_memory(name)


@pytest.mark.parametrize("size", [64, 1 << 22], ids=["small", "large"])
@pytest.mark.parametrize("model", ["floats", "python_floats"])
def test_regions_are_free_when_the_answer_is_there(regions: Regions, model: str, size: int) -> None:
    for _ in range(20):
        regions.share("in", size, np.ones(size // 4, np.float32))
        regions.share("out", size)
        shape = [size // 4]
        regions.client.infer(model, [regions.input("in", size, shape)], outputs=[regions.output("out", size)])
        given = [regions.input("in", size, shape)]
        assert "should be at least" in regions.refusal(model, given, outputs=[regions.output("out", size - 4)])
        for name in ("in", "out"):
            regions.client.unregister_system_shared_memory(name)
            shared_memory.destroy_shared_memory_region(regions.handles.pop(name))


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


def test_a_stream_takes_and_gives_regions(memory_server: ConchProcess) -> None:
    regions = Regions("grpc", memory_server)
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
