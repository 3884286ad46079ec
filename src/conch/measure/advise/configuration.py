"""The ready configuration of an advice: config.pbtxt, model.json, command lines; and a repository with them."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from conch.measure.advise.advice import Advice, ModelAdvice
from conch.measure.advise.advice_facts import CONFIGURED_FORMS, Failure, ModelForm
from conch.measure.advise.engine_plan import model_json
from conch.measure.advise.rules import AdvisedBackend
from conch.measure.tune.pbtxt_edit import edit_pbtxt

_FILENAMES = {
    ModelForm.ONNX: "model.onnx",
    ModelForm.IR: "model.xml",
    ModelForm.TORCH: "model.pt",
    ModelForm.TORCH_EXPORT: "model.pt2",
    ModelForm.PLAN: "model.plan",
}
_QUEUE_DELAY_US = 100
_ENGINES = (AdvisedBackend.VLLM, AdvisedBackend.TENSORRT_LLM, AdvisedBackend.OPENVINO_GENAI)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file of the repository, relative to it."""

    path: str
    text: str
    before: str = ""  # of a file that changes

    def lines(self) -> list[str]:
        """Return the text, or of a file that changes the lines that differ."""
        if not self.before:
            return self.text.splitlines()
        compared = unified_diff(self.before.splitlines(), self.text.splitlines(), n=0, lineterm="")
        return [line for line in compared if not line.startswith(("---", "+++", "@@"))]


def configuration(advice: Advice) -> list[ConfigFile]:
    """Return the files of configuration."""
    files = [file for model in advice.models for file in _files(model)]
    if advice.ensemble is not None:
        files.append(ConfigFile(f"{advice.ensemble.name}/config.pbtxt", advice.ensemble.text))
    return files


def command_lines(advice: Advice, repository: str) -> list[str]:
    """Return one command for each server: replicas of models are servers with other GPUs."""
    servers = max((model.replicas for model in advice.models), default=1)
    if servers == 1:
        return [f"conch serve --model-repository={repository}"]
    lines, begin = [], 0
    for server in range(servers):
        own = [model for model in advice.models if model.replicas > server]
        count = len({gpu for model in own for gpu in model.gpus})
        numbers = ",".join(map(str, range(begin, begin + count)))
        begin += count
        ports = f" --http-port={8000 + 10 * server} --grpc-port={8001 + 10 * server}" if server else ""
        ports += f" --metrics-port={8002 + 10 * server}" if server else ""
        names = "".join(f" --load-model={model.model.name}" for model in own)
        explicit = f" --model-control-mode=explicit{names}" if len(own) < len(advice.models) else ""
        lines.append(f"CUDA_VISIBLE_DEVICES={numbers} conch serve --model-repository={repository}{ports}{explicit}")
    return lines


def _files(advised: ModelAdvice) -> Iterator[ConfigFile]:
    name = advised.model.name
    if advised.backend in _ENGINES:
        keeps = advised.model.backend == advised.backend
        if not keeps:
            yield ConfigFile(f"{name}/config.pbtxt", _engine_pbtxt(advised))
        path = f"{advised.model.version}/model.json"
        document = (_present(advised.model.folder, path) if keeps else {}) | _model_json(advised)
        yield ConfigFile(f"{name}/{path}", json.dumps(document, indent=2) + "\n")
    elif advised.model.folder is None:
        yield ConfigFile(f"{name}/config.pbtxt", _pbtxt(advised))
    elif (text := _changed(advised, advised.model.folder)) is not None:
        before = (advised.model.folder / "config.pbtxt").read_text(encoding="utf-8")
        yield ConfigFile(f"{name}/config.pbtxt", text, before)


def _present(folder: Path | None, path: str) -> dict[str, Any]:
    """Return the JSON object in a model's folder; {} without a file."""
    file = folder / path if folder else None
    document = json.loads(file.read_text(encoding="utf-8")) if file and file.is_file() else {}
    return document if isinstance(document, dict) else {}


def _engine_pbtxt(advised: ModelAdvice) -> str:
    text = f'backend: "{advised.backend}"\n'
    if advised.gpus:
        text += f"instance_group [ {{ kind: KIND_GPU gpus: [ {_joined(advised.gpus)} ] }} ]\n"
    return text


def _model_json(advised: ModelAdvice) -> dict[str, Any]:
    model = advised.model
    if advised.language is None:
        document: dict[str, Any] = {"max_model_len": advised.length, "cache_size": advised.cache_gib}
        return document | {"properties": {"INFERENCE_NUM_THREADS": advised.threads}}
    plan = advised.language
    return model_json(model.path, plan.split, advised.length, plan.utilization)[advised.backend]


def _instance_group(advised: ModelAdvice) -> dict[str, Any]:
    if advised.gpus:
        return {"count": 1, "kind": "KIND_GPU", "gpus": list(advised.gpus)}
    return {"count": advised.instances, "kind": "KIND_CPU"}


def _pbtxt(advised: ModelAdvice) -> str:
    """Return the configuration of a model that has none; the server completes inputs and outputs from the file."""
    backend = AdvisedBackend.ONNXRUNTIME if advised.backend is AdvisedBackend.ONNXRUNTIME_TENSORRT else advised.backend
    lines = [f'backend: "{backend}"']
    if advised.backend is AdvisedBackend.OPENVINO and advised.model.form is ModelForm.ONNX:
        lines.append('default_model_filename: "model.onnx"')
    if advised.max_batch_size:
        lines.append(f"max_batch_size: {advised.max_batch_size}")
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {_QUEUE_DELAY_US} }}")
    group = _instance_group(advised)
    numbers = f" gpus: [ {_joined(advised.gpus)} ]" if advised.gpus else ""
    lines.append(f"instance_group [ {{ count: {group['count']} kind: {group['kind']}{numbers} }} ]")
    if advised.threads:
        key = "INFERENCE_NUM_THREADS" if backend is AdvisedBackend.OPENVINO else "intra_op_thread_count"
        if backend in (AdvisedBackend.OPENVINO, AdvisedBackend.ONNXRUNTIME):
            lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{advised.threads}" }} }}')
    if advised.backend is AdvisedBackend.ONNXRUNTIME_TENSORRT:
        lines.append("optimization { execution_accelerators { gpu_execution_accelerator {")
        lines.append('  name: "tensorrt" parameters { key: "precision_mode" value: "FP16" }')
        lines.append("} } }")
    return "\n".join(lines) + "\n"


def _changed(advised: ModelAdvice, folder: Path) -> str | None:
    """Return the model's configuration with other instances; None without a configuration or a change."""
    config = folder / "config.pbtxt"
    if not config.is_file() or advised.model.form in CONFIGURED_FORMS:
        return None
    before = config.read_text(encoding="utf-8")
    group = _instance_group(advised)
    after = edit_pbtxt(before, lambda document: {**document, "instance_group": [group]}, str(config))
    return after if after != before else None


def _joined(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def write_repository(advice: Advice, target: Path) -> None:
    """Write a repository with all models: files are linked or copied, checkpoints are named by path. Raises Failure."""
    if target.exists() and any(target.iterdir()):
        raise Failure(f"'{target}' is not empty: --write needs a new folder")
    try:
        for model in advice.models:
            _write_model(model, target / model.model.name)
        if advice.ensemble is not None:
            (target / advice.ensemble.name / "1").mkdir(parents=True)
        for file in configuration(advice):
            path = target / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # never write through a hard link
            path.write_text(file.text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"'{error.filename or target}' cannot be written: {error.strerror}") from None


def _write_model(advised: ModelAdvice, folder: Path) -> None:
    model = advised.model
    if model.folder is not None:
        shutil.copytree(model.folder, folder, copy_function=_place)
        return
    version = folder / "1"
    version.mkdir(parents=True)
    if model.form is ModelForm.CHECKPOINT:
        return
    if model.form is ModelForm.IR_LANGUAGE:
        for path in sorted(model.path.iterdir()):
            if path.is_file():
                _place(path, version / path.name)
        return
    _place(model.path, version / _FILENAMES.get(model.form, f"model{model.path.suffix}"))
    beside = [model.path.with_suffix(".bin")] if model.form is ModelForm.IR else []
    if model.form is ModelForm.ONNX:
        from conch.domain.files.onnx_file import read_onnx

        beside = [model.path.parent / name for name in read_onnx(model.path).external]
    for path in beside:
        if path.is_file():
            _place(path, version / ("model.bin" if model.form is ModelForm.IR else path.name))


def _place(source: str | Path, target: str | Path) -> str:
    """Link a file, or copy it between file systems."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return str(target)
