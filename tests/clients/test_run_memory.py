"""A model that does not fit is refused with a change; applied as printed, the model fits and is served.

The free memory is that of a file in place of /proc/meminfo; weights are files without blocks.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.running import TIMEOUT_S, Running, conch

EXAMPLES = Path(__file__).parents[2] / "examples/models"
MIB = 1 << 20
# As estimated: the server, the libraries of onnxruntime, those of openvino_genai with the smallest KV cache.
SERVER, ONNX, GENAI = 100, 60, 200 + 1024
WEIGHTS = 400


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def with_free(home: Path, mebibytes: int) -> Sequence[str]:
    """Return a program that runs a command where so much memory is free. Skips the test without the right to."""
    path = home / f"meminfo-{mebibytes}"
    path.write_text(f"MemTotal: 64000000 kB\nMemFree: 0 kB\nMemAvailable: {mebibytes << 10} kB\n")
    prefix = ["unshare", "-m", "sh", "-c", f'mount --bind {path} /proc/meminfo && exec "$@"', "sh"]
    mounted = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if mounted.returncode:
        reason = "another free memory is a mount over /proc/meminfo, which needs root or CAP_SYS_ADMIN"
        pytest.skip(f"{reason}: {mounted.stderr.strip()}")
    return prefix


def refusal(home: Path, mebibytes: int, *arguments: str) -> str:
    """Return why a model is refused."""
    running = Running(home, *arguments, prefix=with_free(home, mebibytes))
    with pytest.raises(AssertionError, match="the server ended"), running:
        pass
    return running.errors


def answers(home: Path, mebibytes: int, *arguments: str) -> bool:
    """Return whether the printed request to a model is answered."""
    with Running(home, *arguments, prefix=with_free(home, mebibytes)) as server:
        done = subprocess.run(server.curl, shell=True, capture_output=True, timeout=TIMEOUT_S, check=True)
        return bool({"outputs", "choices"} & json.loads(done.stdout).keys())


def heavy(folder: Path, name: str, mebibytes: int) -> Path:
    """Copy an example and add weights, which take no room on the disk."""
    shutil.copytree(EXAMPLES / name, folder)
    weigh(folder, mebibytes << 20)
    return folder


def weigh(folder: Path, size: int) -> None:
    """Make the files of the model's version take `size` bytes."""
    more = folder / "1" / "more.bin"
    more.unlink(missing_ok=True)
    size -= sum(path.stat().st_size for path in (folder / "1").iterdir())
    with more.open("wb") as file:
        os.truncate(file.fileno(), size)


def number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, text
    return int(match[1])


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A model whose configuration has three instances."""
    model = heavy(tmp_path / "digits", "digits", WEIGHTS)
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 3"))
    return model


def configure(model: Path, setting: str) -> None:
    config = model / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 3", setting))


def test_fewer_instances(home: Path, three: Path) -> None:
    free = SERVER + ONNX + 2 * WEIGHTS + 50
    said = refusal(home, free, str(three))
    fitting = number(
        r"it fits with 2 instances instead of 3: count: (\d+) in the instance_group of config.pbtxt$", said
    )
    configure(three, f"count: {fitting}")
    assert answers(home, free, str(three))


def test_fewer_instances_of_a_file(home: Path, tmp_path: Path) -> None:
    model = tmp_path / "digits.onnx"
    shutil.copy(EXAMPLES / "digits/1/model.onnx", model)
    with model.open("ab") as file:  # a field of 128 MiB that no reader knows
        file.write(b"\xc2\x3e\x80\x80\x80\x40")
        file.flush()
        os.truncate(file.fileno(), file.tell() + 128 * MIB)
    free = SERVER + ONNX + 200
    said = refusal(home, free, str(model))
    fitting = number(r"it fits with 1 instance instead of 2: --instances (\d+)$", said)
    assert answers(home, free, str(model), "--instances", str(fitting))


def test_more_memory(home: Path, tmp_path: Path) -> None:
    model = str(heavy(tmp_path / "digits", "digits", WEIGHTS))
    more = number(r"; free (\d+) MiB more, or export", refusal(home, 300, model))
    assert "free 1 MiB more" in refusal(home, 300 + more - 1, model)
    assert answers(home, 300 + more, model)


def test_more_memory_for_one_of_several_instances(home: Path, three: Path) -> None:
    said = refusal(home, 300, str(three))
    more = number(r"; free (\d+) MiB more and use count: 1 in the instance_group of config.pbtxt, or export", said)
    configure(three, "count: 1")
    assert answers(home, 300 + more, str(three))


@pytest.mark.parametrize("options", [["--instances=2"], ["--backend=python", "--max-batch-size=2"]])
def test_options_without_an_effect_are_refused(home: Path, options: list[str]) -> None:
    refused = conch(home, "run", *options, str(EXAMPLES / "digits"))
    names = ", ".join(option.partition("=")[0] for option in options)
    assert refused.returncode != 0
    assert f"no effect ({names}); use the model's config.pbtxt" in refused.stderr


def test_one_of_several_models(home: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        model = heavy(tmp_path / "models" / name, "digits", WEIGHTS)
        config = model / "config.pbtxt"
        config.write_text(config.read_text().replace('name: "digits"', f'name: "{name}"'))
    free = SERVER + ONNX + WEIGHTS + 50
    assert "serve fewer models: conch run the folder of one" in refusal(home, free, str(tmp_path / "models"))
    assert answers(home, free, str(tmp_path / "models" / "second"))


def test_another_quantization(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai", reason="openvino-genai is not here: `make test` installs it")
    model = heavy(tmp_path / "chat", "chat", 2 * WEIGHTS)
    free = SERVER + GENAI + WEIGHTS + 50
    said = refusal(home, free, str(model))
    size = number(r"its weights fit in the quantization \w+, which takes about (\d+) MiB instead of 800 MiB", said)
    weigh(model, size * MIB)
    assert answers(home, free, str(model))


def test_a_smaller_language_model(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("openvino_genai", reason="openvino-genai is not here: `make test` installs it")
    model = heavy(tmp_path / "chat", "chat", 2 * WEIGHTS)
    free = SERVER + GENAI + 30
    size = number(r"a model with weights of at most (\d+) MiB fits", refusal(home, free, str(model)))
    weigh(model, size * MIB)
    assert answers(home, free, str(model))
