"""Small models for the tests that run a whole server, written into a folder."""

import json
from pathlib import Path
from textwrap import dedent, indent
from typing import Any


def tensor(name: str, datatype: str, *dims: int, extra: str = "") -> str:
    """One `input` or `output` entry."""
    return f'{{ name: "{name}" data_type: TYPE_{datatype} dims: [ {", ".join(map(str, dims))} ] {extra} }}'


def write_config(root: Path, name: str, text: str, *versions: int) -> Path:
    """Write a configuration and empty version folders; returns the model's folder."""
    for version in versions or (1,):
        (root / name / str(version)).mkdir(parents=True, exist_ok=True)
    (root / name / "config.pbtxt").write_text(text)
    return root / name


def write_identity(root: Path, name: str, datatype: str = "FP32", *dims: int, batch: int = 0, extra: str = "") -> None:
    """A model of the built-in identity backend: INPUT0 → OUTPUT0."""
    config = f'backend: "identity" max_batch_size: {batch} {extra}'
    write_config(
        root,
        name,
        f"{config} input {tensor('INPUT0', datatype, *(dims or (-1,)))} "
        f"output {tensor('OUTPUT0', datatype, *(dims or (-1,)))}",
    )


def write_scripted(root: Path, name: str, script: dict[str, Any], *, extra: str = "") -> None:
    """A model of the built-in engine that says what its script tells it to."""
    folder = write_config(root, name, f'backend: "scripted" {extra}')
    (folder / "1" / "model.json").write_text(json.dumps(script))


def write_python(root: Path, name: str, config: str, execute: str, *, more: str = "") -> None:
    """A Python model: `execute` is the body of a function of one request that returns a response."""
    folder = write_config(root, name, f'backend: "python" {config}')
    body = indent(dedent(execute).strip(), " " * 8)
    source = f"""
import os, time, json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def answer(self, request):
{body}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

{indent(dedent(more).strip(), " " * 4)}
"""
    (folder / "1" / "model.py").write_text(source)


def write_ensemble(
    root: Path, name: str, inputs: str, outputs: str, *steps: tuple[str, dict[str, str], dict[str, str]]
) -> None:
    """An ensemble; each step is (model, input map, output map)."""

    def mapped(kind: str, names: dict[str, str]) -> str:
        return " ".join(f'{kind} {{ key: "{key}" value: "{value}" }}' for key, value in names.items())

    texts = [
        f'step {{ model_name: "{model}" model_version: -1 {mapped("input_map", takes)} {mapped("output_map", gives)} }}'
        for model, takes, gives in steps
    ]
    write_config(root, name, f'platform: "ensemble" {inputs} {outputs} ensemble_scheduling {{ {" ".join(texts)} }}')


ECHO = """
tensors = [pb_utils.Tensor(t.name().replace("INPUT", "OUTPUT"), t.as_numpy()) for t in request.inputs()]
return pb_utils.InferenceResponse(tensors)
"""
