"""Generate text over Triton's gRPC streams with the official client and the tensors of Triton's vLLM backend."""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from conch.base.errors import InvalidRequest, Unavailable

_COUNTS = ("return_num_input_tokens", "return_num_output_tokens")


@dataclass(slots=True)
class Generated:
    """An answer. Times are seconds since the prompt was sent; counts are None if the server does not send them."""

    texts: list[str]
    total_s: float
    first_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class TritonStream:
    """A language model of a server at `url`, such as localhost:8001. An asynchronous context manager.

    Each prompt has its own stream, because errors in a shared stream of the official client do not name their request.
    """

    def __init__(self, url: str, model: str, *, timeout_s: float | None = None, key: str = "") -> None:
        """`key` is the API key to send, "" for none."""
        self._headers = {"authorization": f"Bearer {key}"} if key else None
        self._url = url
        self._model = model
        self._timeout_s = timeout_s
        self._client: Any
        self._ranks: dict[str, int] = {}  # of the model's inputs
        self._streams = self._excludes = False

    async def __aenter__(self) -> Self:
        self._client = triton.InferenceServerClient(self._url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def prepare(self, *, stream: bool, exclude: bool) -> None:
        """Read the model's inputs and set whether answers are streamed, and whether they exclude the prompt.

        Raises Unavailable if the server or model is not available, InvalidRequest if the model lacks an input.
        """
        try:
            metadata = await self._client.get_model_metadata(self._model, headers=self._headers)
        except InferenceServerException as error:
            raise Unavailable(f"{self._url}: {error.message()}{_remedy(self._url, error.message())}") from None
        self._ranks = {tensor.name: len(tensor.shape) for tensor in metadata.inputs}
        needed = {"text_input": True, "stream": stream, "exclude_input_in_output": exclude and not stream}
        for name, is_needed in needed.items():
            if is_needed and name not in self._ranks:
                raise InvalidRequest(
                    f"model '{self._model}' has no input '{name}', only {', '.join(self._ranks)}: it does not have the "
                    "tensors of Triton's vLLM backend"
                )
        self._streams, self._excludes = stream, exclude

    async def generate(self, request_id: int, prompt: str, sampling: dict[str, Any]) -> Generated:
        """Send a prompt and return its whole answer. Raises Unavailable with the server's message."""
        started = time.monotonic()
        answer = Generated([], 0.0)
        try:
            responses = self._client.stream_infer(
                self._only(self._request(request_id, prompt, sampling)),
                stream_timeout=self._timeout_s,
                headers=self._headers,
            )
            async for result, error in responses:
                if error is not None:
                    raise Unavailable(error.message())
                answer.total_s = time.monotonic() - started
                self._take(result, answer)
        except InferenceServerException as error:
            raise Unavailable(error.message()) from None
        except grpc.RpcError as error:
            raise Unavailable(_error_message(error)) from None
        if not answer.texts:
            raise Unavailable("the stream ended without an answer")
        if self._streams and not self._excludes:
            answer.texts = [prompt + text for text in answer.texts]
        return answer

    def _take(self, result: Any, answer: Generated) -> None:
        """Add a response to the answer: the whole text, or in streaming mode the next piece."""
        array = result.as_numpy("text_output")
        if array is None:
            return
        texts = [text.decode(errors="replace") for text in array.reshape(-1)]
        if self._streams:
            piece = "".join(texts)
            if piece and answer.first_s is None:
                answer.first_s = answer.total_s
            answer.texts = ["".join(answer.texts) + piece]
        else:
            answer.texts = texts
        output, prompt = (result.as_numpy(name) for name in ("num_output_tokens", "num_input_tokens"))
        if output is not None:
            answer.output_tokens = (answer.output_tokens or 0) + int(output.sum())
        if prompt is not None:
            answer.input_tokens = int(prompt.reshape(-1)[0])

    async def _only(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield request

    def _request(self, request_id: int, prompt: str, sampling: dict[str, Any]) -> dict[str, Any]:
        inputs = [self._tensor("text_input", prompt)]
        if "stream" in self._ranks:
            inputs.append(self._tensor("stream", self._streams))
        if "exclude_input_in_output" in self._ranks and not self._streams:
            inputs.append(self._tensor("exclude_input_in_output", self._excludes))
        inputs += [self._tensor(name, True) for name in _COUNTS if name in self._ranks]
        request: dict[str, Any] = {"model_name": self._model, "request_id": str(request_id), "inputs": inputs}
        if "sampling_parameters" in self._ranks:
            inputs.append(self._tensor("sampling_parameters", json.dumps(sampling)))
        else:
            request["parameters"] = {
                key: value if isinstance(value, str) else json.dumps(value) for key, value in sampling.items()
            }
        return request

    def _tensor(self, name: str, value: str | bool) -> Any:
        """Return an input of one element."""
        array = np.array([value.encode()], np.object_) if isinstance(value, str) else np.array([value], np.bool_)
        shape = [1] * self._ranks[name]
        tensor = triton.InferInput(name, shape, "BYTES" if isinstance(value, str) else "BOOL")
        tensor.set_data_from_numpy(array.reshape(shape))
        return tensor


def _remedy(url: str, reason: str) -> str:
    """Return a hint about the URL of a server that cannot be reached."""
    if "://" in url:
        return f"; --url is host:port without a scheme, such as {url.partition('://')[2]}"
    if "http1.x server" in reason:
        return "; this is an HTTP port, --url must have the gRPC port (8001)"
    return "; is the server running, and is this its gRPC port?" if "Connection refused" in reason else ""


def _error_message(error: grpc.RpcError) -> str:
    details = getattr(error, "details", lambda: "")()
    code = getattr(error, "code", lambda: None)()
    return f"[{code}] {details}" if code is not None else str(error)
