"""Listed regions, and what is refused: registrations, places outside of a region, sizes that do not fit."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.server.conformance.regions import FLOATS, IN, LARGE, Array, Regions


def test_registered_regions_are_listed(regions: Regions) -> None:
    regions.share("one", 4096)
    regions.client.register_system_shared_memory("two", regions.key("one"), 64, offset=128)

    def status(name: str = "") -> dict[str, Any]:
        if regions.kind == "http":
            return {row["name"]: row for row in regions.client.get_system_shared_memory_status(name)}
        rows = regions.client.get_system_shared_memory_status(name, as_json=True).get("regions", {})
        return {key: {"offset": 0} | row | {"byte_size": int(row["byte_size"])} for key, row in rows.items()}

    first = {"name": "one", "key": regions.key("one"), "offset": 0, "byte_size": 4096}
    second = {"name": "two", "key": regions.key("one"), "offset": 128, "byte_size": 64}
    assert {key: {**row, "offset": int(row["offset"])} for key, row in status().items()} == {
        "one": first,
        "two": second,
    }
    assert list(status("two")) == ["two"]
    regions.client.unregister_system_shared_memory("two")
    regions.client.unregister_system_shared_memory("two")
    assert list(status()) == ["one"]
    regions.client.register_system_shared_memory("two", f"//{regions.key('one').lstrip('/')}", 64)  # as shm_open does
    regions.client.unregister_system_shared_memory("two")
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
        ("", "", 64, 0, "Unable to open shared memory region: ''"),
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
    unopened = "Unable to open" in text or text == "File name too long"
    code = "ALREADY_EXISTS" if exists else "INTERNAL" if unopened else "INVALID_ARGUMENT"
    expected = ("500" if unopened else "400") if regions.kind == "http" else f"StatusCode.{code}"
    assert caught.value.status() == expected


def test_a_file_that_is_not_memory_cannot_be_registered(regions: Regions, tmp_path: Path) -> None:
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
    with pytest.raises(InferenceServerException, match=r"failed to register shared memory region: invalid args: .*'c'"):
        regions.client.register_cuda_shared_memory("c", b"A" * 86 + b"==", 0, 64)
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
