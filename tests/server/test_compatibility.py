"""docs/compatibility.md against the code: every name has a row, and every row tells the truth."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from conch.base.command_line.flags import Standing
from conch.base.errors import ConfigError
from conch.domain.config.from_proto import to_model_config
from conch.domain.config.unsupported import refuse_unsupported, unsupported_notices
from conch.domain.metrics.catalog import all_metrics
from conch.domain.model_config import ModelConfig
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import service_pb2
from conch.server.frontends.endpoints import ENDPOINTS
from conch.server.options.server_options import FLAGS
from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "conch"
CHILD = SOURCE / "server" / "backends" / "child"
SERVED = ("supported", "different")


class Row(NamedTuple):
    name: str
    standing: str
    note: str


def _rows() -> dict[str, list[Row]]:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    sections: dict[str, list[Row]] = {}
    for section in page.split("\n## ")[1:]:
        cells = re.findall(r"^\| (`[^|]+`) \| ([a-z ]+) \| (.*?) ?\|$", section, re.MULTILINE)
        rows = [(name, *rest) for names, *rest in cells for name in re.findall(r"`([^`]+)`", names)]
        lists = re.findall(r"^Supported: (.+?)\.$", section, re.MULTILINE | re.DOTALL)
        plain = [Row(name, "supported", "") for names in lists for name in re.findall(r"`([^`]+)`", names)]
        sections[section.partition("\n")[0]] = [*plain, *(Row(*row) for row in rows)]
    return sections


ROWS = _rows()


def named(rows: list[Row]) -> list[Any]:
    return [pytest.param(row, id=row.name) for row in rows]


@pytest.mark.parametrize("section", ROWS)
def test_rows_are_complete(section: str) -> None:
    rows = ROWS[section]
    assert len({row.name for row in rows}) == len(rows)
    assert {row.standing for row in rows} <= {*SERVED, "no effect", "refused", "absent"}
    assert [row.name for row in rows if row.standing != "supported" and not row.note] == []


# ---- HTTP and gRPC, asked of a server --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("compatibility")
    write_identity(folder / "models", "m", "FP32", 4)
    flags = ("--model-control-mode=explicit", "--load-model=m", "--allow-client-shm=true")
    flags = (*flags, "--allow-sagemaker=true", "--sagemaker-port=0")
    with ConchProcess(folder / "models", *flags, log=folder / "log") as running:
        yield running


def sagemaker_port(server: ConchProcess) -> int:
    (port,) = re.findall(r"Started Sagemaker HTTPService at \S*:(\d+)", server.text)
    return int(port)


@pytest.mark.parametrize("row", named(ROWS["HTTP"]))
def test_an_endpoint(row: Row, server: ConchProcess) -> None:
    method, _, path = row.name.partition(" ")
    port = server.ports["metrics" if path == "/metrics" else "http"]
    if path.startswith(("/models", "/invocations")):
        port = sagemaker_port(server)
    for word, value in (("{model}", "m"), ("{version}", "1"), ("{repository}", "r"), ("{region}", "none")):
        path = path.replace(word, value)
    body = b"{}" if method == "POST" else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    # On SageMaker's port unknown paths are 400 without a body.
    is_served = status not in (405, 501) and b'"Not Found"' not in text and (status, text) != (400, b"")
    assert is_served == (row.standing in SERVED), (status, text)


def test_every_route_has_a_row() -> None:
    declared = [endpoint for endpoint in ENDPOINTS if endpoint.path.startswith("/v2")]
    paths = {re.sub(r"\[(/region/{region}|/{repository})?.*?\]", r"\1", endpoint.path) for endpoint in declared}
    known = {row.name.partition(" ")[2] for row in ROWS["HTTP"]}
    assert len(paths) > 18
    assert paths - known == set()


@pytest.mark.parametrize("row", named(ROWS["gRPC"]))
def test_a_call(row: Row, server: ConchProcess) -> None:
    package = "grpc.health.v1" if row.name.startswith("Health") else "grpc.reflection.v1"
    path = f"/{package}.{row.name}" if "/" in row.name else f"/inference.GRPCInferenceService/{row.name}"
    with grpc.insecure_channel(server.grpc) as channel:
        try:
            if row.name == "Health/Watch":
                next(channel.unary_stream(path)(b"", timeout=60))
            elif row.name in ("ModelStreamInfer", "ServerReflection/ServerReflectionInfo"):
                assert list(channel.stream_stream(path)(iter(()), timeout=60)) == []
            else:
                channel.unary_unary(path)(b"", timeout=60)
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
    assert (code is not grpc.StatusCode.UNIMPLEMENTED) == (row.standing in SERVED)


def test_every_call_has_a_row() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    others = ["Health/Check", "Health/Watch", "ServerReflection/ServerReflectionInfo"]
    assert {row.name for row in ROWS["gRPC"]} == {*(method.name for method in service.methods), *others}


# ---- config.pbtxt ----------------------------------------------------------------------------------------------------

# Fields that show in no value of ours, and where they are looked at.
CHECKED_ELSEWHERE = {
    "input.format": "validate.py",
    "sequence_batching.control_input.name": "from_proto.py",
    "sequence_batching.control_input.control.int32_false_true": "from_proto.py",
    "sequence_batching.control_input.control.fp32_false_true": "from_proto.py",
    "sequence_batching.control_input.control.bool_false_true": "from_proto.py",
    "sequence_batching.control_input.control.data_type": "from_proto.py",
    "sequence_batching.state.initial_state.data_type": "validate.py",
    "sequence_batching.state.initial_state.name": "validate.py",
    # Zeros are what is there if nothing else is asked for.
    "sequence_batching.state.initial_state.zero_data": "validate.py",
    "model_warmup.inputs.zero_data": "validate.py",
    "model_repository_agents.agents.name": "../../server/repository/store.py",
    "model_repository_agents.agents.parameters": "../../server/repository/store.py",
    # Scalars of one kind.
    "batch_output.kind": "validate.py",
}
# Fields whose default is true are reported only if they are false.
TRUE_BY_DEFAULT = {"optimization.input_pinned_memory.enable", "optimization.output_pinned_memory.enable"}
# Settings that one backend reads from the document.
READ_BY = {
    "optimization.graph.level": "onnxruntime",
    "optimization.execution_accelerators.gpu_execution_accelerator.name": "onnxruntime",
    "optimization.execution_accelerators.gpu_execution_accelerator.parameters": "onnxruntime",
    "optimization.execution_accelerators.cpu_execution_accelerator.name": "onnxruntime",
    "optimization.execution_accelerators.cpu_execution_accelerator.parameters": "onnxruntime",
    "model_operations.op_library_filename": "onnxruntime",
    "instance_group.profile": "tensorrt",
    "runtime": "pytorch",
}
BACKENDS = ("python", "identity", "onnxruntime", "openvino", "pytorch", "tensorrt", "fil")


def _fields(descriptor: Descriptor, prefix: str = "") -> Iterator[str]:
    """The fields of a message that have no fields themselves, by their paths."""
    for field in descriptor.fields:
        path, inner = f"{prefix}{field.name}", field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            inner = inner.fields_by_name["value"].message_type
        if inner is None or not inner.fields:
            yield path
        else:
            yield from _fields(inner, f"{path}.")


def _set(message: Message, parts: list[str]) -> None:
    """Give a field, deep inside a message, a value that is not its default."""
    name, rest = parts[0], parts[1:]
    field = message.DESCRIPTOR.fields_by_name[name]
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        key: Any = "k" if inner.fields_by_name["key"].type == FieldDescriptor.TYPE_STRING else 1
        if inner.fields_by_name["value"].message_type is None:
            getattr(message, name)[key] = "x"
        else:
            value = getattr(message, name)[key]  # there from now on
            if rest:
                _set(value, rest)
    elif inner is not None:
        value = getattr(message, name).add() if field.is_repeated else getattr(message, name)
        value.SetInParent()
        if rest:
            _set(value, rest)
    elif field.is_repeated:
        getattr(message, name).extend([_other(field)] * 2)
    else:
        setattr(message, name, _other(field))


def _other(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    if field.type == FieldDescriptor.TYPE_STRING:
        return "x"
    if field.type == FieldDescriptor.TYPE_BOOL:
        return True
    return 0.5 if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE) else 2


def _message(backend: str, *paths: str) -> ConfigMessage:
    message = ConfigMessage(name="m", backend=backend)
    for path in paths:
        _set(message, path.split("."))
    for warmup in message.model_warmup:  # one without a batch size has no effect
        warmup.batch_size = warmup.batch_size or 1
    return message


def _values(message: ConfigMessage) -> ModelConfig:
    return replace(to_model_config(message), document={})


def _fate(path: str, backend: str) -> str:
    """Return how a backend treats a field: refused, reported or used; "silence" is a failure."""
    message = _message(backend, path)
    try:
        refuse_unsupported(message)
    except ConfigError:
        return "refused"
    if unsupported_notices(message) or path in TRUE_BY_DEFAULT:
        return "told"
    if path in CHECKED_ELSEWHERE or READ_BY.get(path) == backend:
        return "used"
    outer = path.rpartition(".")[0]
    before = _message(backend, outer) if outer else _message(backend)
    return "used" if _values(message) != _values(before) else "silence"


def test_every_field_has_a_row() -> None:
    assert {row.name for row in ROWS["Configuration of models"]} == {*_fields(ConfigMessage.DESCRIPTOR)}


# With these the rules for tensors and groups refuse the field: a specific error, in Triton's words.
REFUSED_BY_RULE = {
    "input.is_shape_tensor", "input.is_non_linear_format_io", "output.is_shape_tensor",
    "output.is_non_linear_format_io", "instance_group.profile",
}  # fmt: skip


@pytest.mark.parametrize("row", named(ROWS["Configuration of models"]))
def test_a_field(row: Row) -> None:
    fates = {backend: _fate(row.name, backend) for backend in BACKENDS}
    if row.name in REFUSED_BY_RULE:
        fates = {"tensorrt": fates["tensorrt"]}
    assert "silence" not in fates.values(), fates
    if row.standing in SERVED:
        assert "used" in fates.values()
    else:
        assert set(fates.values()) == {"refused" if row.standing == "refused" else "told"}


@pytest.mark.parametrize("path", CHECKED_ELSEWHERE)
def test_what_is_looked_at_elsewhere_is(path: str) -> None:
    text = (SOURCE / "domain" / "config" / CHECKED_ELSEWHERE[path]).read_text()
    assert re.search(rf"\b({path.rpartition('.')[2]}|WhichOneof)\b", text)


@pytest.mark.parametrize("path", READ_BY)
def test_what_a_backend_reads_is_read_by_it(path: str) -> None:
    text = "\n".join(module.read_text() for module in (SOURCE / "server" / "backends" / READ_BY[path]).glob("*.py"))
    assert f'"{path.rpartition(".")[2]}"' in text


# ---- flags, metrics, Python ------------------------------------------------------------------------------------------


def test_every_flag_of_tritons_has_a_row() -> None:
    missing = {f"--{flag.name}" for flag in FLAGS if flag.standing is not Standing.SUPPORTED}
    assert missing - {row.name for row in ROWS["Flags"]} == set()


@pytest.mark.parametrize("row", named(ROWS["Flags"]))
def test_a_flag(row: Row) -> None:
    flags = {f"--{name}": flag for flag in FLAGS for name in (flag.name, *flag.aliases)}
    if row.name not in flags:
        assert row.standing == "refused"  # as every unknown flag
        return
    flag = flags[row.name]
    told = {Standing.IGNORED: "no effect"}.get(flag.standing)
    assert row.standing == told if told else row.standing in SERVED
    assert flag.reason in row.note


@pytest.mark.parametrize("row", named(ROWS["Metrics"]))
def test_a_metric(row: Row) -> None:
    assert (row.name in all_metrics()) == (row.standing in SERVED)


def test_every_metric_under_tritons_names_has_a_row() -> None:
    named_as_triton = {name for name in all_metrics() if name.startswith("nv_")}
    assert named_as_triton - {row.name for row in ROWS["Metrics"]} == set()


@pytest.fixture(scope="module")
def python_names() -> set[str]:
    script = (
        "import inspect, json, triton_python_backend_utils as module\n"
        "names = list(module.__all__)\n"
        "names += [f'{name}.{each}' for name in module.__all__ if inspect.isclass(getattr(module, name))"
        " for each in dir(getattr(module, name))]\n"
        "print(json.dumps(names))\n"
    )
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, cwd=CHILD, capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(result.stdout))


@pytest.mark.parametrize("row", named(ROWS["Python models"]))
def test_a_name_of_the_python_api(row: Row, python_names: set[str]) -> None:
    if row.name.startswith("TritonPythonModel."):
        folder = CHILD / "conch_child" / "python"
        text = "\n".join((folder / name).read_text() for name in ("model_host.py", "service.py"))
        is_there = row.name.partition(".")[2] in text
    else:
        is_there = row.name in python_names
    assert is_there == (row.standing in SERVED)


def test_every_name_of_the_python_module_has_a_row(python_names: set[str]) -> None:
    assert {name for name in python_names if "." not in name} - {row.name for row in ROWS["Python models"]} == set()
