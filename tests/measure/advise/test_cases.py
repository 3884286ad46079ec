"""The worked cases of docs/advise.md and cases.md: they show what the command prints, the expected recommendation.

`python -m tests.measure.advise.test_cases` writes the outputs into both.
"""

import io
import json
import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from conch.measure.advise.command import advise
from tests.docs.blocks import ROOT, blocks_of
from tests.measure.advise.make_models import make_models

PAGES = (ROOT / "docs" / "advise.md", Path(__file__).with_name("cases.md"))
# The folder that the page's models are in.
_SHOWN = "/data"


def run(arguments: list[str], folder: Path) -> tuple[int, str]:
    """Return the exit status and what the command prints, in the folder of the models."""
    output = io.StringIO()
    with chdir(folder), redirect_stdout(output), redirect_stderr(output):
        try:
            status = advise(arguments)
        except SystemExit as stopped:
            status = int(stopped.code or 0)
    return status, output.getvalue().replace(os.path.realpath(folder), _SHOWN)


def commands() -> Iterator[tuple[list[str], list[str]]]:
    """Yield the arguments of each command of the cases, and the lines that it shows."""
    for block in [block for page in PAGES for block in blocks_of(page)]:
        if block.not_run.startswith("a worked case"):
            for command in block.commands():
                yield shlex.split(command.text.replace("\\\n", " "))[2:], command.expected


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


def test_the_page_shows_what_the_command_prints(models: Path) -> None:
    cases = list(commands())
    assert len(cases) == 10
    for arguments, expected in cases:
        _, printed = run(arguments, models)
        assert printed.rstrip("\n").split("\n") == expected


# The number of the case → backend, TP, PP, instances of each model; and the layout.
EXPECTED: tuple[tuple[str, dict[str, tuple[str, int, int, int]]], ...] = (
    ("one model", {"qwen2.5-3b-instruct": ("vllm", 1, 1, 1)}),
    (
        "ensemble",
        {
            "detect": ("ensemble", 1, 1, 1),
            "detector": ("onnxruntime", 1, 1, 1),
            "preprocess": ("python", 1, 1, 4),
            "postprocess": ("python", 1, 1, 4),
        },
    ),
    ("one model", {"qwen2.5-7b-q4": ("openvino_genai", 1, 1, 1)}),
    ("", {}),
    ("ensemble", {"qwen2.5-3b-instruct": ("vllm", 1, 1, 1), "densenet": ("onnxruntime", 1, 1, 1)}),
    ("one model", {"llama-3-8b": ("tensorrtllm", 2, 1, 1)}),
    (
        "several models in one repository",
        {"mistral-7b-instruct": ("vllm", 1, 1, 1), "llama-2-7b-chat": ("vllm", 1, 1, 1)},
    ),
    ("one model", {"llama-3-70b": ("vllm", 4, 1, 1)}),
    ("one model", {"classifier": ("openvino", 1, 1, 1)}),
    (
        "several models in one repository",
        {
            "chat": ("openvino_genai", 1, 1, 1),
            "densenet_onnx": ("onnxruntime", 1, 1, 1),
            "simple_echo": ("python", 1, 1, 2),
        },
    ),
)


@pytest.mark.parametrize("number", range(len(EXPECTED)))
def test_the_recommendation_is_the_expected_one(number: int, models: Path) -> None:
    layout, expected = EXPECTED[number]
    arguments, _ = list(commands())[number]
    status, printed = run([*arguments, "--json"], models)
    if not expected:
        assert status == 1
        assert "8 such GPUs suffice" in printed
        assert "awq" in printed
        return
    document: dict[str, Any] = json.loads(printed)
    assert document["layout"]["option"] == layout
    assert {
        model["name"]: (
            model["backend"]["option"],
            model["tensor_parallel_size"],
            model["pipeline_parallel_size"],
            model["instances"],
        )
        for model in document["models"]
    } == expected
    assert all(
        figure["source"] in ("from the file", "rule of thumb", "stated", "measured here")
        for model in document["models"]
        for figure in model["figures"]
    )


def write_pages() -> None:
    """Replace the outputs on the pages by what the commands print."""
    with tempfile.TemporaryDirectory() as folder:
        make_models(Path(folder))
        for page in PAGES:
            lines = page.read_text().split("\n")
            for block in reversed(blocks_of(page)):
                if block.not_run.startswith("a worked case"):
                    command = block.commands()[0]
                    _, printed = run(shlex.split(command.text.replace("\\\n", " "))[2:], Path(folder))
                    shown = [*f"$ {command.text}".split("\n"), *printed.rstrip("\n").split("\n")]
                    lines[block.line : block.line + len(block.lines)] = shown
            page.write_text("\n".join(lines))


if __name__ == "__main__":
    write_pages()
