"""gRPC's own services: the stream of the health service and server reflection, with their official clients."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import tritonclient.http as http_client
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support.models import write_identity
from tests.support.server_process import ConchProcess

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("services") / "models"
    write_identity(folder, "m", "FP32", 4)
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ConchProcess]:
    flags = ("--model-control-mode=explicit", "--load-model=m", "--grpc-restricted-protocol=metadata:key=secret")
    with ConchProcess(models, *flags, log=models.parent / "log") as running:
        yield running


@pytest.fixture
def channel(server: ConchProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.grpc) as opened:
        yield opened


KEY = (("triton-grpc-protocol-key", "secret"),)


class WithKey(grpc.StreamStreamClientInterceptor):
    """Adds the metadata of the restriction: the reflection client has no argument for it."""

    def intercept_stream_stream(self, continuation, details, requests):  # type: ignore[no-untyped-def]
        return continuation(details._replace(metadata=KEY), requests)


def test_the_status_and_its_changes_are_streamed(server: ConchProcess, channel: grpc.Channel, models: Path) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=120)
    assert next(watch).status == SERVING
    (models / "broken").mkdir()
    (models / "broken" / "config.pbtxt").write_text('backend: "nothing"')
    with http_client.InferenceServerClient(server.http) as client:
        with pytest.raises(http_client.InferenceServerException):
            client.load_model("broken")
        assert next(watch).status == NOT_SERVING
        write_identity(models, "broken", "FP32", 4)
        client.load_model("broken")
    assert next(watch).status == SERVING
    watch.cancel()


def test_many_watchers_come_and_go(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest(service=f"s{number}"), timeout=120) for number in range(50)]
    assert {next(watch).status for watch in watches} == {SERVING}
    for watch in watches:
        watch.cancel()
    assert stub.Check(health_pb2.HealthCheckRequest(), timeout=60).status == SERVING


def test_a_client_learns_services_and_messages(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(grpc.intercept_channel(channel, WithKey()))
    assert set(database.get_services()) == {
        *("grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"),
        "inference.GRPCInferenceService",
    }
    pool = DescriptorPool(database)
    service = pool.FindServiceByName("inference.GRPCInferenceService")
    assert service.FindMethodByName("ModelInfer").input_type.fields_by_name["model_name"].number == 1
    assert pool.FindMessageTypeByName("inference.ModelConfig").file.name == "model_config.proto"
    watch = pool.FindServiceByName("grpc.health.v1.Health").FindMethodByName("Watch")
    assert (watch.client_streaming, watch.server_streaming) == (False, True)
    with pytest.raises(KeyError):
        pool.FindMessageTypeByName("inference.Nothing")


def ask(channel: grpc.Channel, *questions: bytes | reflection_pb2.ServerReflectionRequest) -> list[object]:
    raw = [question if isinstance(question, bytes) else question.SerializeToString() for question in questions]
    call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    return [
        reflection_pb2.ServerReflectionResponse.FromString(answer)
        for answer in call(iter(raw), timeout=60, metadata=KEY)
    ]


def test_other_questions(channel: grpc.Channel) -> None:
    question = reflection_pb2.ServerReflectionRequest
    extension = reflection_pb2.ExtensionRequest(containing_type="a", extension_number=1)
    answers = ask(
        channel,
        *(question(file_containing_extension=extension), question(all_extension_numbers_of_type="a"), question()),
        question(file_by_filename="../../etc/passwd"),
        *(question(file_by_filename="grpc_service.proto") for _ in range(200)),
    )
    assert [answer.error_response.error_code for answer in answers[:4]] == [12, 12, 12, 5]
    assert {len(answer.file_descriptor_response.file_descriptor_proto) for answer in answers[4:]} == {2}


@pytest.mark.parametrize(
    "question", [b"\xff", b"\x1a\xff\xff\xff\xff\x0f", b"\x1a\x02\xff\xfe", b"\x0a" + b"x" * 100_000]
)
def test_malformed_questions_end_the_call(channel: grpc.Channel, question: bytes) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        ask(channel, question)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_restrictions_hold(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        list(
            reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=60
            )
        )
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
