"""Find the expected answers of requests: in a file, or by sending each request once before the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from conch.domain.tensor import Tensor
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.inputs.answer_comparison import (
    ExpectedEmbedding,
    ExpectedGrpcResponses,
    ExpectedGrpcTensors,
    ExpectedHttpTensors,
    ExpectedText,
    generated_text,
    read_grpc_outputs,
    read_http_outputs,
)
from conch.measure.bench.inputs.sequences import SequenceSource
from conch.measure.bench.inputs.text.sessions import answer_text
from conch.measure.bench.prepared_request import Answer, ExpectedAnswer, PreparedRequest, ResponseKind
from conch.measure.bench.targets.http_probe import HttpProbe
from conch.measure.bench.targets.target import BenchTarget, Protocol

FIRST = "first"
_TIMEOUT_S = 300.0
_OK = 200


def expect_outputs(target: BenchTarget, outputs: Mapping[str, Tensor], tolerance: float) -> ExpectedAnswer | None:
    """Return the check for outputs that a file has; None if it has none."""
    if not outputs:
        return None
    if target.protocol in (Protocol.GRPC, Protocol.GRPC_STREAM):
        return ExpectedGrpcTensors(outputs, tolerance)  # of a stream, the first response
    if target.protocol is Protocol.HTTP:
        return ExpectedHttpTensors(outputs, tolerance)
    raise InputError(f"expected outputs are compared with --protocol http, grpc or grpc-stream, not {target.protocol}")


def add_expected_answers(target: BenchTarget, requests: Sequence[PreparedRequest], settings: InputSettings) -> None:
    """Set the expected answer of each request, as `--expect` says. Raises InputError, TargetError."""
    if settings.expect is None:
        return
    if settings.expect == FIRST:
        for request in requests:
            request.expected = _check_for(target, request, send_once(target, request), settings.tolerance)
        return
    answers = _of_file(settings.expect)
    if len(answers) not in (1, len(requests)):
        wanted = f"expected 1, or one for each of {len(requests)} requests"
        raise InputError(f"--expect {settings.expect} has {len(answers)} answers; {wanted}")
    for index, request in enumerate(requests):
        body = answers[index % len(answers)]
        request.expected = _check_for(target, request, body, settings.tolerance, of_file=True)


def expect_sequences(target: BenchTarget, source: SequenceSource, settings: InputSettings) -> SequenceSource:
    """Return the sequences with the answers that they get when each is sent once. Raises InputError, TargetError."""
    if settings.expect != FIRST:
        raise InputError(
            "--expect FILE has answers of single requests; for sequences use --expect first, or validation_data in "
            "--input-data"
        )

    def answered(request: PreparedRequest) -> ExpectedAnswer:
        return _check_for(target, request, send_once(target, request), settings.tolerance)

    return source.expecting(answered)


def send_once(target: BenchTarget, request: PreparedRequest) -> Answer:
    """Send a request outside of the run and return its answer. Raises InputError for a failure, TargetError."""
    if target.protocol in (Protocol.GRPC, Protocol.GRPC_STREAM):
        return _send_grpc(target, request)
    first, *lines = request.head.decode("latin-1").splitlines()
    method, path, _ = first.split(" ")
    probe = HttpProbe(target.endpoint, _TIMEOUT_S)
    try:
        answer = probe.ask(method, path, request.body, dict(line.split(": ", 1) for line in lines))
    finally:
        probe.close()
    if answer.status != _OK:
        raise InputError(f"--expect first: the server answers {answer.status}: {answer.error_message()}")
    if request.response in (ResponseKind.OPENAI_STREAM, ResponseKind.GENERATE_STREAM):
        return Answer(answer.status, b"", streamed_text(answer.body))
    return Answer(answer.status, answer.body)


def _send_grpc(target: BenchTarget, request: PreparedRequest) -> Answer:
    from conch.domain.triton_messages import service_pb2
    from conch.measure.bench.load.grpc.text import response_text
    from conch.measure.bench.targets.grpc_probe import GrpcProbe

    found = GrpcProbe(target.endpoint, _TIMEOUT_S).responses(request.head.decode(), request.body)
    if target.protocol is Protocol.GRPC:
        return Answer(0, found[0])
    responses = [service_pb2.ModelStreamInferResponse.FromString(each) for each in found]
    for each in responses:
        if each.error_message:
            raise InputError(f"--expect first: the server answers {each.error_message}")
    parts = [each.infer_response.SerializeToString() for each in responses if each.infer_response.outputs]
    return Answer(0, b"".join(parts), "".join(map(response_text, parts)))


def streamed_text(body: bytes) -> str:
    """Return the joined content of server-sent events of the OpenAI API or of generate_stream."""
    parts = []
    for line in body.splitlines():
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if not data or data == b"[DONE]":
            continue
        document = orjson.loads(data)
        if "text_output" in document:
            parts.append(str(document["text_output"]))
        for choice in document.get("choices") or ():
            delta = choice.get("delta")
            parts.append((choice.get("text") if delta is None else delta.get("content")) or "")
    return "".join(parts)


def _check_for(
    target: BenchTarget, request: PreparedRequest, answer: Answer, tolerance: float, *, of_file: bool = False
) -> ExpectedAnswer:
    """Return the check for an answer, by its form; one of a file is JSON also for gRPC."""
    try:
        is_text = target.protocol is Protocol.GRPC_STREAM and target.takes_prompts  # in chunks that vary
        if target.protocol in (Protocol.GRPC, Protocol.GRPC_STREAM) and not is_text:
            if of_file:
                return ExpectedGrpcTensors(read_http_outputs(answer.body), tolerance)
            kind = ExpectedGrpcTensors if target.protocol is Protocol.GRPC else ExpectedGrpcResponses
            return kind(read_grpc_outputs(answer.body), tolerance)
        if target.protocol is Protocol.HTTP:
            return ExpectedHttpTensors(read_http_outputs(answer.body), tolerance)
        if target.protocol is Protocol.OPENAI and request.head.split(b" ", 2)[1].endswith(b"/embeddings"):
            return ExpectedEmbedding(answer.body, tolerance)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"--expect: the answer is not well-formed: {error}") from None
    text = answer_text(answer) or generated_text(answer.body)
    if not text and not target.takes_prompts:
        raise InputError(
            f"--expect compares the text of --protocol {target.protocol}, and '{target.model.name}' answers without "
            "text; tensors are compared with --protocol http, grpc or grpc-stream"
        )
    return ExpectedText(text or answer.body.decode("utf-8", "replace"))


def _of_file(name: str) -> list[Answer]:
    """Return the answers of a file: a body of the server, a JSON list of such bodies, or a text."""
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise InputError(f"--expect {name} cannot be read: {error.strerror}") from None
    try:
        document: Any = orjson.loads(content)
    except ValueError:
        return [Answer(_OK, content)]
    entries = document if isinstance(document, list) else [document]
    return [_answer(entry) for entry in entries]


def _answer(entry: Any) -> Answer:
    if isinstance(entry, str):
        return Answer(_OK, b"", entry)
    return Answer(_OK, orjson.dumps(entry))
