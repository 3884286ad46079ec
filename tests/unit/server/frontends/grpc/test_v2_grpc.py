"""The unary calls but ModelInfer, asked by the official client."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

import conch
from conch.base.errors import InvalidRequest, ModelLoadError, Unavailable
from conch.server.options.server_options import ServerOptions


@pytest.fixture
async def stub(frontend):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


async def refusal(awaitable) -> tuple[str, str]:
    """Return status and text of a call that fails in the official client."""
    with pytest.raises(InferenceServerException) as caught:
        await awaitable
    return caught.value.status().removeprefix("StatusCode."), caught.value.message()


async def test_live_and_ready_follow_the_server(client, inference):
    assert await client.is_server_live()
    assert await client.is_server_ready()
    inference.is_ready = False
    assert await client.is_server_live()
    assert not await client.is_server_ready()


async def test_model_ready_is_false_for_what_is_unknown(client):
    assert await client.is_model_ready("echo")
    assert await client.is_model_ready("echo", "1")
    assert not await client.is_model_ready("echo", "2")
    assert not await client.is_model_ready("nope")


@pytest.mark.parametrize("version", ["abc", "-1", "1.0", "99999999999999999999"])
async def test_a_malformed_version_is_refused(client, version):
    for call in (client.is_model_ready, client.get_model_metadata, client.get_model_config):
        status, text = await refusal(call("echo", version))
        assert status == "INVALID_ARGUMENT"
        begin = "invalid model version specified" if version == "-1" else "failed to get model version from specified"
        assert text.startswith(begin)
        assert f"'{version}'" in text


async def test_server_metadata_claims_only_what_is_there(client):
    metadata = await client.get_server_metadata(as_json=True)
    assert metadata["name"] == ServerOptions().id
    assert metadata["version"] == conch.__version__
    assert "binary_tensor_data" in metadata["extensions"]
    assert metadata["extensions"][:3] == ["classification", "sequence", "model_repository"]
    assert "system_shared_memory" not in metadata["extensions"]


async def test_model_metadata(client):
    metadata = await client.get_model_metadata("echo", as_json=True)
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": ["-1", "16"]}
    assert metadata == {
        "name": "echo",
        "versions": ["1"],
        "platform": "fake",
        "inputs": [tensor],
        "outputs": [tensor],
    }


async def test_shapes_of_a_model_without_batching_are_its_dims(client, inference):
    inference.add("plain", lambda pending: None, max_batch_size=0, platform="onnxruntime_onnx")
    metadata = await client.get_model_metadata("plain")
    assert list(metadata.inputs[0].shape) == [16]
    assert metadata.platform == "onnxruntime_onnx"


async def test_model_config_is_the_whole_document(client):
    answer = await client.get_model_config("echo")
    assert answer.config.name == "echo"
    assert answer.config.parameters["k"].string_value == "v"
    assert answer.config.version_policy.latest.num_versions == 1


async def test_statistics(client, inference):
    statistics = inference.statistics("echo")[0]
    statistics.inference_count = 5
    statistics.success.add(700)
    statistics.count_execution(4, 0, 10, 30, 60)
    inference.statistics = lambda name, version: [statistics]
    answer = (await client.get_inference_statistics("echo", "1")).model_stats[0]
    assert (answer.name, answer.version) == ("echo", "1")
    assert (answer.inference_count, answer.execution_count) == (5, 1)
    assert (answer.inference_stats.success.count, answer.inference_stats.success.ns) == (1, 700)
    batch = answer.batch_stats[0]
    assert (batch.batch_size, batch.compute_infer.ns, batch.compute_output.ns) == (4, 20, 30)


async def test_unknown_models_are_not_found_but_invalid_for_statistics(client):
    assert (await refusal(client.get_model_metadata("nope")))[0] == "NOT_FOUND"
    assert (await refusal(client.get_model_config("echo", "9")))[0] == "NOT_FOUND"
    assert (await refusal(client.get_inference_statistics("nope")))[0] == "INVALID_ARGUMENT"


async def test_repository_index(client):
    index = (await client.get_model_repository_index(as_json=True))["models"]
    assert index == [
        {"name": "echo", "version": "1", "state": "READY"},
        {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "no such file"},
        {"name": "never_loaded"},
    ]


async def test_repository_index_of_ready_models(stub):
    index = await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=True))
    assert [model.name for model in index.models] == ["echo"]


async def test_load_and_unload(client, control):
    await client.load_model("echo", config='{"max_batch_size": 4}', files={"file:1/model.bin": b"\0\xff"})
    assert control.loads == [("echo", '{"max_batch_size": 4}', {"1/model.bin": b"\0\xff"})]
    await client.unload_model("echo", unload_dependents=True)
    await client.unload_model("echo")
    assert control.unloads == [("echo", True), ("echo", False)]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelLoadError("no such file"), "INTERNAL"),
        (InvalidRequest("bad config"), "INVALID_ARGUMENT"),
        (Unavailable("explicit model load / unload is not allowed if polling is enabled"), "UNAVAILABLE"),
    ],
)
async def test_a_load_that_fails_says_why(client, control, error, status):
    control.error = error
    assert await refusal(client.load_model("echo")) == (status, error.message)


async def test_repository_names_are_refused_by_name(stub):
    for call, request in (
        (stub.RepositoryIndex, service_pb2.RepositoryIndexRequest(repository_name="r")),
        (stub.RepositoryModelLoad, service_pb2.RepositoryModelLoadRequest(repository_name="r", model_name="m")),
        (stub.RepositoryModelUnload, service_pb2.RepositoryModelUnloadRequest(repository_name="r", model_name="m")),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match="'repository_name' specification is not supported") as caught:
            await call(request)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_load_parameters_of_the_wrong_name_or_type_are_refused(stub, control):
    request = service_pb2.RepositoryModelLoadRequest(model_name="m")
    for key, kind, text in (
        ("foo", "string_param", "unrecognized load parameter 'foo'"),
        ("config", "bytes_param", "load parameter 'config', expected string_param"),
        ("file:1/model", "string_param", "load parameter 'file:1/model', expected bytes_param"),
    ):
        request.ClearField("parameters")
        setattr(request.parameters[key], kind, b"x" if kind == "bytes_param" else "x")
        with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
            await stub.RepositoryModelLoad(request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert control.loads == []


async def test_calls_of_later_extensions_are_unimplemented_by_name(client):
    for name, awaitable in (
        ("SystemSharedMemoryStatus", client.get_system_shared_memory_status()),
        ("SystemSharedMemoryRegister", client.register_system_shared_memory("r", "/r", 8)),
        ("CudaSharedMemoryUnregister", client.unregister_cuda_shared_memory("r")),
    ):
        status, text = await refusal(awaitable)
        assert status == "UNIMPLEMENTED"
        assert name in text


async def test_health_ignores_the_service_name(frontend, inference):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "inference.GRPCInferenceService", "whatever"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        inference.is_ready = False
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        answer = await anext(aiter(health.Watch(health_pb2.HealthCheckRequest())))
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize(
    "path",
    [
        "/inference.GRPCInferenceService/Nope",
        "/grpc.reflection.v1alpha.ServerReflection/Other",
        "/a/b",
    ],
)
async def test_unknown_calls_are_unimplemented(frontend, path):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(path)(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_malformed_messages_are_client_errors(frontend):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{frontend.port}") as channel:
        for name in ("ModelMetadata", "ModelInfer", "ServerLive"):
            with pytest.raises(grpc.aio.AioRpcError, match="failed to parse the request as inference") as caught:
                await channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(b"\x0a\xff")
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_fault_of_the_server_is_an_internal_error(client, inference, caplog):
    def broken(name, version):
        raise ZeroDivisionError("division by zero")

    inference.model = broken
    status, text = await refusal(client.get_model_metadata("echo"))
    assert status == "INTERNAL"
    assert text == "internal error"
    assert "a gRPC call failed unexpectedly" in caplog.text
    assert "ZeroDivisionError: division by zero" in caplog.text
