"""The inputs of the last requests, for bundles, by choice of --incident-requests. By default nothing is kept."""

from base64 import b64encode
from collections import deque
from collections.abc import Sequence
from secrets import token_bytes
from typing import Any, Literal, NamedTuple, TypeAlias

from blake3 import blake3

from conch.domain.events.redaction import REDACTED, Redaction
from conch.domain.request import InferRequest, ParameterValue
from conch.domain.tensor import BYTES, Tensor, unpack_bytes

Detail: TypeAlias = Literal["shapes", "hashed", "sampled", "whole"]

MAX_BYTES = 64 << 20  # of all that is kept
MAX_REQUEST_BYTES = 1 << 20  # of one request; of larger ones only hashes
_SAMPLED_ONE_OF = 100
_MAX_HASHED = 200_000


class _Kept(NamedTuple):
    """What is kept of one request: its tensors, without data where they have a hash."""

    size: int
    number: int  # in the event log
    model: str
    received_ns: int
    parameters: dict[str, ParameterValue]
    inputs: list[tuple[Tensor, str]]


class Payloads:
    """Keeps hashes or copies of inputs of requests for tensors; hashes are keyed, so that only equality shows.

    Belongs to the event loop's thread.
    """

    def __init__(self, detail: Detail, rules: Sequence[str] = ()) -> None:
        self.detail = detail
        self._redaction = Redaction(rules)
        self._key = token_bytes(32)
        self._kept: deque[_Kept] = deque()
        self._count = 0
        self._bytes = 0

    def keep(self, request: InferRequest) -> None:
        """Keep what was chosen of a request."""
        self._count += 1
        if self.detail == "sampled" and self._count % _SAMPLED_ONE_OF != 1:
            return
        size = sum(tensor.nbytes for tensor in request.inputs)
        copied = self.detail != "hashed" and size <= MAX_REQUEST_BYTES
        inputs = []
        for tensor in request.inputs:
            data = bytes(tensor.data) if copied else b""
            digest = "" if copied else blake3(tensor.data, key=self._key).hexdigest(16)
            inputs.append((Tensor(tensor.name, tensor.datatype, tensor.shape, data), digest))
        size = size if copied else 0
        parameters = dict(request.parameters)
        received = request.timeline.received
        self._kept.append(_Kept(size, request.number, request.model_name, received, parameters, inputs))
        self._bytes += size
        while self._bytes > MAX_BYTES or len(self._kept) > _MAX_HASHED:
            self._bytes -= self._kept.popleft().size

    def documents(self) -> list[dict[str, Any]]:
        """Return the requests as JSON values, without what rules redact. Takes long; may be called in a thread."""
        return [
            {
                "number": request.number,
                "model": request.model,
                "received_ns": request.received_ns,
                "parameters": self._redaction.of_json(request.parameters),
                "inputs": [self._input(tensor, digest) for tensor, digest in request.inputs],
            }
            for request in list(self._kept)
        ]

    def _input(self, tensor: Tensor, digest: str) -> dict[str, Any]:
        document: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if digest:
            return {**document, "hash": digest}
        if self._redaction.of_json({tensor.name: None}) != {tensor.name: None}:
            return {**document, "data": REDACTED}
        if tensor.datatype != BYTES:
            return {**document, "base64": b64encode(tensor.data).decode()}
        return {**document, "data": [self._element(element) for element in unpack_bytes(tensor.data)]}

    def _element(self, element: bytes) -> str | dict[str, str]:
        try:
            return self._redaction.of_text(element.decode())
        except UnicodeDecodeError:
            return {"base64": b64encode(element).decode()}
