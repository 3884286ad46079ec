"""Requests and loads of gRPC."""

import dataclasses

from tritonclient.grpc import service_pb2

from conch.measure.bench.generator import (
    Cancel,
    ClosedLoop,
    Endpoint,
    ExpectedAnswer,
    FixedRequests,
    LoadPlan,
    OpenLoop,
    PreparedRequest,
    ResponseKind,
    ScriptSource,
    Tls,
    Transport,
)
from tests.measure.bench.load.running import plan

UNARY_PATH = b"/inference.GRPCInferenceService/ModelInfer"
STREAM_PATH = b"/inference.GRPCInferenceService/ModelStreamInfer"


def message(model: str, raw: bytes = b"\x02\x00\x00\x00hi", datatype: str = "BYTES", **parameters: int) -> bytes:
    """Return a ModelInferRequest with one tensor."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="INPUT0", datatype=datatype, shape=[1])
    request.raw_input_contents.append(raw)
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    return request.SerializeToString()


def unary(
    model: str,
    raw: bytes = b"\x02\x00\x00\x00hi",
    *,
    expected: ExpectedAnswer | None = None,
    cancel: Cancel = Cancel.NEVER,
    cancel_after: int = 0,
) -> PreparedRequest:
    """Return a request for ModelInfer."""
    return PreparedRequest(
        0, UNARY_PATH, message(model, raw), expected=expected, cancel=cancel, cancel_after=cancel_after
    )


def streamed(
    model: str,
    *,
    expected: ExpectedAnswer | None = None,
    cancel: Cancel = Cancel.NEVER,
    cancel_after: int = 0,
) -> PreparedRequest:
    """Return a request for ModelStreamInfer."""
    return PreparedRequest(
        0,
        STREAM_PATH,
        message(model),
        ResponseKind.GRPC_STREAM,
        expected=expected,
        cancel=cancel,
        cancel_after=cancel_after,
    )


def grpc_plan(
    port: int,
    source: ScriptSource | list[PreparedRequest],
    pacing: ClosedLoop | OpenLoop | None = None,
    *,
    tls: Tls | None = None,
    host: str = "127.0.0.1",
    headers: tuple[tuple[str, str], ...] = (),
    timeout_s: float = 30.0,
    connections: int | None = None,
    requests: int | None = None,
) -> LoadPlan:
    """Return a plan for gRPC."""
    if not isinstance(source, ScriptSource):
        source = FixedRequests(source)
    made = plan(port, source, pacing, timeout_s=timeout_s, connections=connections, requests=requests)
    return dataclasses.replace(made, endpoint=Endpoint(host, port, Transport.GRPC, tls, headers))
