"""Ask once, with the official client, before any load: a fast wrong answer is worth nothing."""

from collections.abc import Iterator
from queue import Queue

import grpc
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import np_to_triton_dtype

from benchmarks.harness.payloads import Array, Payload, Question, Wire
from benchmarks.harness.peers import Server
from benchmarks.harness.regions import SharedQuestion

TIMEOUT_SECONDS = 60.0
FRAME_PREFIX_BYTES = 5
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def verify(server: Server, question: Question, wire: Wire) -> None:
    """Put the question by `tritonclient` over the protocol of `wire`; AssertionError when the answer is wrong."""
    if wire.is_shared:
        with SharedQuestion(question, server, wire) as shared:
            shared.verify()
        return
    answers = _ask_http(server, question, wire) if wire.is_http else _ask_grpc(server, question)
    for answer in answers:
        question.check(answer)


def server_version(server: Server) -> str:
    """Return the version that the server gives in its metadata."""
    with http_client.InferenceServerClient(server.http_address) as client:
        return str(client.get_server_metadata()["version"])


def grpc_answer_bytes(server: Server, payload: Payload) -> int:
    """Return how many body bytes the answer to one message of `payload` has on the wire, framing included.

    h2load takes a gRPC error for a success, its HTTP status being 200. An error has no body, so the count of body bytes
    tells the two apart. Raises grpc.RpcError when the very bytes that will be repeated are refused.
    """

    def once() -> Iterator[bytes]:
        yield payload.message

    with grpc.insecure_channel(server.grpc_address, options=UNLIMITED) as channel:
        call = channel.stream_stream(payload.path, request_serializer=bytes, response_deserializer=bytes)
        return sum(len(answer) + FRAME_PREFIX_BYTES for answer in call(once(), timeout=TIMEOUT_SECONDS))


def _ask_http(server: Server, question: Question, wire: Wire) -> list[Array]:
    inputs = []
    for name, array in question.inputs.items():
        tensor = http_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array, binary_data=wire is Wire.BINARY))
    output = http_client.InferRequestedOutput(question.output, binary_data=wire is Wire.BINARY)
    with http_client.InferenceServerClient(
        server.http_address, connection_timeout=TIMEOUT_SECONDS, network_timeout=TIMEOUT_SECONDS
    ) as client:
        if not question.sequence:
            return [client.infer(question.model, inputs, outputs=[output]).as_numpy(question.output)]
        for number in range(1, question.sequence + 1):
            answer = client.infer(
                question.model,
                inputs,
                outputs=[output],
                sequence_id=1,
                sequence_start=number == 1,
                sequence_end=number == question.sequence,
            )
    return [answer.as_numpy(question.output)]


def _ask_grpc(server: Server, question: Question) -> list[Array]:
    inputs = []
    for name, array in question.inputs.items():
        tensor = grpc_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        inputs.append(tensor.set_data_from_numpy(array))
    output = grpc_client.InferRequestedOutput(question.output)
    with grpc_client.InferenceServerClient(server.grpc_address) as client:
        if question.responses == 1:
            result = client.infer(question.model, inputs, outputs=[output], client_timeout=TIMEOUT_SECONDS)
            return [result.as_numpy(question.output)]
        answers: Queue[tuple[grpc_client.InferResult | None, Exception | None]] = Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(question.model, inputs, outputs=[output])
        arrays = []
        for _ in range(question.responses):
            result, error = answers.get(timeout=TIMEOUT_SECONDS)
            if result is None:
                raise error or AssertionError("neither an answer nor an error")
            arrays.append(result.as_numpy(question.output))
        return arrays
