"""Expected answers: of a file, or the first ones; tensors are compared exactly or with a tolerance, texts exactly."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from conch.domain.tensor import BYTES, NUMPY_DTYPES, Tensor, pack_bytes, unpack_bytes
from conch.measure.bench.generator import Answer, ExpectedAnswer, PreparedRequest
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.inputs.answer_check import leading_json
from conch.measure.bench.inputs.conversations import answer_text
from conch.measure.bench.inputs.sequences import SequenceSource
from conch.measure.bench.targets.single_request import send_alone
from conch.measure.bench.targets.target import BenchTarget, Protocol, RequestFailure

_FLOATS = ("FP16", "BF16", "FP32", "FP64")
_ABSOLUTE_TOLERANCE = 1e-6
_MAX_SHOWN = 60
FIRST = "first"
_TIMEOUT_S = 300.0
_OK = 200


class ExpectedTensors(ExpectedAnswer):
    """Named outputs, as `read` finds them in a body. Ids, versions and parameters of answers are not compared."""

    def __init__(
        self,
        outputs: Mapping[str, Tensor],
        tolerance: float,
        read: Callable[[bytes], Mapping[str, Tensor]],
        *,
        complete: bool = False,
    ) -> None:
        """`complete`: the answer has no other outputs. `read` raises ValueError, KeyError, IndexError or TypeError."""
        self._outputs = {name: (tensor.datatype, tensor.shape, bytes(tensor.data)) for name, tensor in outputs.items()}
        self._tolerance = tolerance
        self._read = read
        self._complete = complete
        self._equal = b""  # the last body that was equal: most answers are the same bytes

    def difference(self, answer: Answer) -> str:
        if self._equal and answer.body == self._equal:
            return ""
        try:
            outputs = self._read(answer.body)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            return f"not well-formed: {error}"
        for name, (datatype, shape, data) in self._outputs.items():
            output = outputs.get(name)
            if output is None:
                return f"output '{name}' is missing"
            if tuple(output.shape) != tuple(shape):
                return f"output '{name}' has shape {list(output.shape)}, expected {list(shape)}"
            if bytes(output.data) != data and (difference := self._compared(name, datatype, bytes(output.data), data)):
                return difference
        if self._complete and (surplus := [name for name in outputs if name not in self._outputs]):
            return f"output '{surplus[0]}' is not expected"
        self._equal = answer.body
        return ""

    def _compared(self, name: str, datatype: str, got: bytes, wanted: bytes) -> str:
        if datatype == BYTES:
            pairs = enumerate(zip(unpack_bytes(got), unpack_bytes(wanted), strict=True))
            at, (was, should) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
            return f"output '{name}' element {at} is {was[:_MAX_SHOWN]!r}, expected {should[:_MAX_SHOWN]!r}"
        values, expected = _numbers(got, datatype), _numbers(wanted, datatype)
        if datatype in _FLOATS:
            close = np.isclose(values, expected, rtol=self._tolerance, atol=_ABSOLUTE_TOLERANCE, equal_nan=True)
            wrong = np.flatnonzero(~close)
        else:
            wrong = np.flatnonzero(values != expected)
        if not len(wrong):
            return ""
        first = int(wrong[0])
        count = f" ({len(wrong)} elements differ)" if len(wrong) > 1 else ""
        return f"output '{name}' element {first} is {values[first]:g}, expected {expected[first]:g}{count}"


def _numbers(data: bytes, datatype: str) -> Any:
    if datatype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)).view("<f4")
    return np.frombuffer(data, NUMPY_DTYPES[datatype])


class ExpectedText(ExpectedAnswer):
    """The text of an answer of the OpenAI API or of generate."""

    def __init__(self, text: str) -> None:
        self._text = text

    def difference(self, answer: Answer) -> str:
        text = answer_text(answer)
        if text == self._text:
            return ""
        pairs = enumerate(zip(text, self._text, strict=False))
        at = next((at for at, pair in pairs if pair[0] != pair[1]), min(len(text), len(self._text)))
        got, wanted = text[at : at + _MAX_SHOWN], self._text[at : at + _MAX_SHOWN]
        return f"the text differs at character {at}: {got!r}, expected {wanted!r}"


class ExpectedEmbedding(ExpectedAnswer):
    """The vectors of an answer of /v1/embeddings."""

    def __init__(self, body: bytes, tolerance: float) -> None:
        self._vectors = _vectors(body)
        self._tolerance = tolerance

    def difference(self, answer: Answer) -> str:
        try:
            vectors = _vectors(answer.body)
        except (ValueError, KeyError, TypeError) as error:
            return f"not well-formed: {error}"
        if vectors.shape != self._vectors.shape:
            return f"embeddings of shape {list(vectors.shape)}, expected {list(self._vectors.shape)}"
        far = float(np.max(np.abs(vectors - self._vectors), initial=0.0))
        limit = self._tolerance * float(np.max(np.abs(self._vectors), initial=0.0)) + _ABSOLUTE_TOLERANCE
        return "" if far <= limit else f"the embedding differs by up to {far:g}"


def _vectors(body: bytes) -> Any:
    return np.array([entry["embedding"] for entry in orjson.loads(body)["data"]], np.float64)


def read_http_outputs(body: bytes) -> dict[str, Tensor]:
    """Return the outputs of a v2 answer. The JSON ends where the binary outputs begin, as its sizes say.

    Raises ValueError, KeyError or TypeError for an answer that is not well-formed.
    """
    document, end = leading_json(body)
    outputs: dict[str, Tensor] = {}
    for entry in document["outputs"]:
        name, datatype, shape = entry["name"], entry["datatype"], entry["shape"]
        size = (entry.get("parameters") or {}).get("binary_data_size")
        if size is None:
            outputs[name] = Tensor(name, datatype, shape, _packed(datatype, entry["data"]))
            continue
        if end + size > len(body):
            raise ValueError(f"output '{name}' is cut off")
        outputs[name] = Tensor(name, datatype, shape, body[end : end + size])
        end += size
    return outputs


def _packed(datatype: str, data: Any) -> bytes:
    flat = np.array(data, object).ravel().tolist()
    if datatype == BYTES:
        return pack_bytes(flat)
    values = [np.nan if value is None else value for value in flat]
    return np.array(values, NUMPY_DTYPES[datatype]).tobytes()


def read_grpc_outputs(body: bytes) -> dict[str, Tensor]:
    """Return the outputs of ModelInferResponses with raw contents, one after the other. Raises ValueError.

    The name of an output that comes again is followed by the number of its response.
    """
    from conch.domain.triton_messages import service_pb2

    try:
        message = service_pb2.ModelInferResponse.FromString(body)
    except Exception as error:
        raise ValueError(str(error)) from None
    if len(message.raw_output_contents) != len(message.outputs):
        raise ValueError("outputs without raw contents")
    outputs: dict[str, Tensor] = {}
    seen: Counter[str] = Counter()
    for output, data in zip(message.outputs, message.raw_output_contents, strict=True):
        seen[output.name] += 1
        key = output.name if seen[output.name] == 1 else f"{output.name}, response {seen[output.name]}"
        outputs[key] = Tensor(output.name, output.datatype, tuple(output.shape), data)
    return outputs


def expect_outputs(target: BenchTarget, outputs: Mapping[str, Tensor], tolerance: float) -> ExpectedAnswer | None:
    """Return the check for outputs that a file has; None if it has none."""
    if not outputs:
        return None
    if target.protocol in (Protocol.GRPC, Protocol.GRPC_STREAM):
        return ExpectedTensors(outputs, tolerance, read_grpc_outputs)  # of a stream, the first response
    if target.protocol is Protocol.HTTP:
        return ExpectedTensors(outputs, tolerance, read_http_outputs)
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
    try:
        sent = send_alone(target.endpoint, request, _TIMEOUT_S)
    except RequestFailure as failure:
        raise InputError(f"--expect first: the server answers {failure.message}") from None
    return Answer(sent.status, sent.body, sent.text)


def _check_for(
    target: BenchTarget, request: PreparedRequest, answer: Answer, tolerance: float, *, of_file: bool = False
) -> ExpectedAnswer:
    """Return the check for an answer, by its form; one of a file is JSON also for gRPC."""
    try:
        is_text = target.protocol is Protocol.GRPC_STREAM and target.takes_prompts  # in chunks that vary
        if target.protocol in (Protocol.GRPC, Protocol.GRPC_STREAM) and not is_text:
            outputs = (read_http_outputs if of_file else read_grpc_outputs)(answer.body)
            complete = target.protocol is Protocol.GRPC_STREAM and not of_file
            return ExpectedTensors(outputs, tolerance, read_grpc_outputs, complete=complete)
        if target.protocol is Protocol.HTTP:
            return ExpectedTensors(read_http_outputs(answer.body), tolerance, read_http_outputs)
        if target.protocol is Protocol.OPENAI and request.head.split(b" ", 2)[1].endswith(b"/embeddings"):
            return ExpectedEmbedding(answer.body, tolerance)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"--expect: the answer is not well-formed: {error}") from None
    text = answer_text(answer)
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
