"""What `discover` finds out about a real Conch server, and the requests that are made for it."""

from collections.abc import Iterator

import pytest

from conch.measure.bench.generator import PreparedRequest, ResponseKind
from conch.measure.bench.input_settings import InputSettings
from conch.measure.bench.inputs.build import build_source
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.http_probe import HttpAnswer, HttpProbe
from conch.measure.bench.targets.single_request import send_alone
from conch.measure.bench.targets.target import BenchTarget, ModelKind, Protocol, TargetError
from tests.support.models import write_identity, write_scripted
from tests.support.server_process import ConchProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("discover")
    write_scripted(folder / "repository", "words", {"context_length": 300})
    write_identity(folder / "repository", "echo", "FP32", 4, batch=8)
    write_identity(folder / "repository", "variable", "INT64", -1, 3)
    with ConchProcess(folder / "repository", log=folder / "log") as process:
        yield process


def requests(target: BenchTarget, settings: InputSettings | None = None) -> list[PreparedRequest]:
    prepared = build_source(target, settings or InputSettings()).fixed
    assert prepared
    return prepared


def send(target: BenchTarget, request: PreparedRequest) -> HttpAnswer:
    lines = request.head.decode().splitlines()
    method, path, _ = lines[0].split()
    headers = dict(line.split(": ", 1) for line in lines[1:])
    return HttpProbe(target.endpoint).ask(method, path, request.body, headers)


def test_a_model_with_tensors_is_measured_over_http(server: ConchProcess) -> None:
    target = discover(server.http, model="echo")
    assert target.server_name == "conch"
    assert (target.protocol, target.model.max_batch_size, target.model.kind) == (Protocol.HTTP, 8, ModelKind.TENSORS)
    (form,) = target.model.inputs
    assert (form.name, form.datatype, form.shape) == ("INPUT0", "FP32", (-1, 4))
    made = requests(target, InputSettings(batch_size=3))
    assert len({request.body for request in made}) == len(made) == 16
    answer = send(target, made[0])
    assert answer.status == 200
    assert answer.body.endswith(made[0].body[-3 * 4 * 4 :])


def test_a_language_model_is_measured_with_the_openai_api(server: ConchProcess) -> None:
    target = discover(server.http, model="words")
    assert (target.protocol, target.base_path, target.model.context_length) == (Protocol.OPENAI, "/v1", 300)
    assert target.protocols == (Protocol.OPENAI, Protocol.GENERATE)
    request = requests(target)[0]
    assert request.response is ResponseKind.OPENAI_STREAM
    answer = send(target, request)
    assert answer.status == 200
    assert b'"usage":{"prompt_tokens"' in answer.body
    assert answer.body.rstrip().endswith(b"data: [DONE]")


def test_the_path_of_the_openai_api_may_be_in_the_url(server: ConchProcess) -> None:
    assert discover(f"http://{server.http}/v1", model="words").base_path == "/v1"
    assert discover(f"http://{server.http}/v1/", model="echo").protocol is Protocol.HTTP


@pytest.mark.parametrize("url", ["{}", "grpc://{}"])
def test_a_grpc_port_is_recognised(server: ConchProcess, url: str) -> None:
    target = discover(url.format(server.grpc), model="echo")
    assert (target.protocol, target.protocols) == (Protocol.GRPC, (Protocol.GRPC, Protocol.GRPC_STREAM))
    assert target.server_name == "conch"
    request = requests(target)[0]
    assert send_alone(target.endpoint, request).body.endswith(request.body[-4 * 4 :])


def test_a_decoupled_model_is_measured_by_streams(server: ConchProcess) -> None:
    target = discover(server.grpc, model="words")
    assert target.protocol is Protocol.GRPC_STREAM
    with pytest.raises(TargetError, match=r"decoupled.*use grpc-stream"):
        discover(server.grpc, protocol=Protocol.GRPC, model="words")
    with pytest.raises(TargetError, match=r"decoupled.*use generate, or grpc-stream"):
        discover(server.http, protocol=Protocol.HTTP, model="words")


def test_errors_say_which_models_there_are(server: ConchProcess) -> None:
    with pytest.raises(TargetError, match="has 3 models; choose one with --model: echo, variable, words"):
        discover(server.http)
    with pytest.raises(TargetError, match=r"no model 'ekho'; did you mean 'echo'. Ready models: echo, variable, words"):
        discover(server.http, model="ekho")
    with pytest.raises(TargetError, match="no model 'ekho'; did you mean 'echo'"):
        discover(server.grpc, model="ekho")


def test_the_wrong_port_is_named(server: ConchProcess) -> None:
    with pytest.raises(TargetError, match=r"speaks gRPC, which --protocol http does not use.*8000"):
        discover(server.grpc, protocol=Protocol.HTTP, model="echo")
    with pytest.raises(TargetError, match=r"speaks HTTP/1.1; use http://, or the gRPC port"):
        discover(f"grpc://{server.http}", model="echo")
    with pytest.raises(TargetError, match="this looks like a metrics port"):
        discover(f"127.0.0.1:{server.ports['metrics']}")
    with pytest.raises(TargetError, match="does not speak TLS"):
        discover(f"https://{server.http}")
