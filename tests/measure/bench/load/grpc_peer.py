"""A server of the v2 protocol made with grpcio, in a process: `python -m tests.measure.bench.load.grpc_peer OPTIONS`.

What it does depends on the name of the model; see `MODELS` and `STREAMED`.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

Context = grpc.aio.ServicerContext
Reply = service_pb2.ModelInferResponse
REASON = "too much: 100 % für uns"

begun = cancelled = 0  # calls that last until they are cancelled


def reply(request: service_pb2.ModelInferRequest, final: bool | None = None) -> Reply:
    """Return the inputs as outputs."""
    answer = Reply(model_name=request.model_name, id=request.id, raw_output_contents=request.raw_input_contents)
    for tensor in request.inputs:
        answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    if final is not None:
        answer.parameters["triton_final_response"].bool_param = final
    return answer


async def echo(request: service_pb2.ModelInferRequest, context: Context) -> Reply:
    return reply(request)


async def slow(request: service_pb2.ModelInferRequest, context: Context) -> Reply:
    await asyncio.sleep(0.01)
    return reply(request)


async def exhausted(request: service_pb2.ModelInferRequest, context: Context) -> Reply:
    return await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, REASON)


async def invalid(request: service_pb2.ModelInferRequest, context: Context) -> Reply:
    return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such input")


async def internal(request: service_pb2.ModelInferRequest, context: Context) -> Reply:
    raise RuntimeError("boom")


async def huge_trailers(request: service_pb2.ModelInferRequest, context: Context) -> Reply:
    context.set_trailing_metadata([(f"x-{number}", "v" * 1000) for number in range(60)])
    return reply(request)


async def never(request: service_pb2.ModelInferRequest, context: Context) -> Reply:
    global begun, cancelled
    begun += 1
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        cancelled += 1
        raise
    return reply(request)


async def count_cancelled(request: service_pb2.ModelInferRequest, context: Context) -> Reply:
    return Reply(model_name=str(cancelled), model_version=str(begun))


MODELS: dict[str, Callable[[service_pb2.ModelInferRequest, Context], Awaitable[Reply]]] = {
    method.__name__: method
    for method in (echo, slow, exhausted, invalid, internal, huge_trailers, never, count_cancelled)
}


async def one(request: service_pb2.ModelInferRequest) -> AsyncIterator[service_pb2.ModelStreamInferResponse]:
    yield service_pb2.ModelStreamInferResponse(infer_response=reply(request))


async def tokens(request: service_pb2.ModelInferRequest) -> AsyncIterator[service_pb2.ModelStreamInferResponse]:
    assert request.parameters["triton_enable_empty_final_response"].bool_param
    for _ in range(5):
        yield service_pb2.ModelStreamInferResponse(infer_response=reply(request, final=False))
        await asyncio.sleep(0)
    last = Reply(model_name=request.model_name, id=request.id)
    last.parameters["triton_final_response"].bool_param = True
    yield service_pb2.ModelStreamInferResponse(infer_response=last)


async def failing(request: service_pb2.ModelInferRequest) -> AsyncIterator[service_pb2.ModelStreamInferResponse]:
    yield service_pb2.ModelStreamInferResponse(error_message=REASON)


async def endless(request: service_pb2.ModelInferRequest) -> AsyncIterator[service_pb2.ModelStreamInferResponse]:
    global begun, cancelled
    begun += 1
    try:
        while True:
            yield service_pb2.ModelStreamInferResponse(infer_response=reply(request, final=False))
            await asyncio.sleep(0.001)
    finally:
        cancelled += 1


async def silent(request: service_pb2.ModelInferRequest) -> AsyncIterator[service_pb2.ModelStreamInferResponse]:
    await asyncio.sleep(3600)
    yield service_pb2.ModelStreamInferResponse()


STREAMED = {method.__name__: method for method in (one, tokens, failing, endless, silent)}


class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
    """The methods that the load generator calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def ModelInfer(self, request: service_pb2.ModelInferRequest, context: Context) -> Reply:
        return await MODELS[request.model_name](request, context)

    async def ModelStreamInfer(
        self, requests: AsyncIterator[service_pb2.ModelInferRequest], context: Context
    ) -> AsyncIterator[service_pb2.ModelStreamInferResponse]:
        self.calls += 1
        async for request in requests:
            if request.model_name == "ended":
                return
            if request.model_name == "aborted":
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, REASON)
            if request.model_name == "count_calls":
                yield service_pb2.ModelStreamInferResponse(
                    infer_response=Reply(model_version=str(self.calls), id=request.id)
                )
                continue
            async with contextlib.aclosing(STREAMED[request.model_name](request)) as answers:
                async for answer in answers:
                    yield answer


async def serve(options: dict[str, int], certificate: str | None) -> None:
    server = grpc.aio.server(options=[*options.items(), ("grpc.so_reuseport", 0)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)
    if certificate is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pem = Path(certificate).read_bytes()  # noqa: ASYNC240
        port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(pem, pem)]))
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


@contextlib.contextmanager
def grpc_peer(certificate: str | None = None, **options: int) -> Iterator[int]:
    """Run the server and yield its port; `certificate` is a PEM file with its key.

    Options are grpcio's, with `__` for a dot.
    """
    named = {name.replace("__", "."): value for name, value in options.items()}
    command = [sys.executable, "-m", "tests.measure.bench.load.grpc_peer", json.dumps([named, certificate])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve(*json.loads(sys.argv[1])))
