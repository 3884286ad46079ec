"""Targets that no server is needed for, and requests made for them."""

from collections.abc import Sequence

from conch.domain.request import InferRequest
from conch.measure.bench.generator import Endpoint, PreparedRequest, Script, Transport
from conch.measure.bench.input_settings import InputSettings
from conch.measure.bench.inputs.build import build_source
from conch.measure.bench.targets.target import BenchTarget, Protocol, TargetModel, TensorMetadata
from conch.protocols.v2_json.inference import decode_request, read_header_length


def model(*inputs: TensorMetadata, outputs: Sequence[TensorMetadata] = (), batch: int = 0) -> TargetModel:
    return TargetModel("m", inputs=inputs, outputs=tuple(outputs), max_batch_size=batch)


def target(of: TargetModel, protocol: Protocol = Protocol.HTTP) -> BenchTarget:
    transport = Transport.GRPC if protocol in (Protocol.GRPC, Protocol.GRPC_STREAM) else Transport.HTTP1
    return BenchTarget("u", Endpoint("127.0.0.1", 9, transport), protocol, "", "test", "1", of)


def fixed(of: BenchTarget, settings: InputSettings) -> list[PreparedRequest]:
    requests = build_source(of, settings).fixed
    assert requests is not None
    return requests


def script(of: BenchTarget, settings: InputSettings, session: int = 0) -> list[PreparedRequest]:
    """The requests of a script that reads no answers."""
    return all_of(build_source(of, settings).script(session))


def all_of(script: Script) -> list[PreparedRequest]:
    requests = []
    while (request := script.next(None)) is not None:
        requests.append(request)
    return requests


def decoded(request: PreparedRequest) -> InferRequest:
    """What the server's own codec reads from a v2 request over HTTP."""
    first, *lines = request.head.decode().splitlines()
    assert first == "POST /v2/models/m/infer HTTP/1.1"
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    given = headers.get("inference-header-content-length")
    length = read_header_length(given.encode() if given is not None else None, len(request.body))
    message, _ = decode_request("m", None, request.body, length)
    return message
