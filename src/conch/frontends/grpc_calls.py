"""From grpcio's calls to the service and back: unwrap, one call, wrap; what goes wrong becomes a status."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeAlias

import grpc
import grpc.aio

from conch.core.pending import Pending
from conch.errors import ConchError, InvalidRequest, Unavailable
from conch.frontends.grpc_options import MAX_MESSAGE_SIZE
from conch.frontends.grpc_status import abort
from conch.frontends.restrictions import Restrictions
from conch.frontends.v2_grpc import INFERENCE_SERVICE, Method
from conch.frontends.v2_grpc_infer import InferEndpoint
from conch.frontends.v2_grpc_stream import InferStream

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Handler: TypeAlias = "grpc.RpcMethodHandler[bytes, bytes]"
UnaryHandler: TypeAlias = Callable[[bytes, Context], Awaitable[bytes]]

_log = logging.getLogger(__name__)


class Calls(grpc.GenericRpcHandler):
    """Every call that this server answers, by its path; any other is UNIMPLEMENTED by grpcio itself."""

    def __init__(self, methods: dict[str, Method], endpoint: InferEndpoint, restrictions: Restrictions) -> None:
        self._endpoint = endpoint
        self._restrictions = restrictions
        self._streams: set[InferStream] = set()
        # No serializers: the codec works on bytes, and a message that cannot be parsed gets our answer, not grpcio's.
        self._handlers: dict[str, Handler] = {
            path: grpc.unary_unary_rpc_method_handler(self._unary(method)) for path, method in methods.items()
        }
        self._handlers[f"/{INFERENCE_SERVICE}/ModelInfer"] = grpc.unary_unary_rpc_method_handler(self._infer)
        self._handlers[f"/{INFERENCE_SERVICE}/ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        """Return the handler of a call."""
        return self._handlers.get(handler_call_details.method)

    def stop_streams(self) -> None:
        """Let the open streams answer what they have and end."""
        for stream in self._streams:
            stream.stop()

    def _check_access(self, category: str, metadata: Metadata) -> None:
        """Let a call pass or raise Unavailable, the code that Triton answers with."""
        if not self._restrictions:
            return

        def sent(key: str) -> bytes:
            values = (value for name, value in metadata if name == key)
            value = next(values, b"")
            return value if isinstance(value, bytes) else value.encode()

        header = self._restrictions.missing(category, sent)
        if header is not None:
            raise Unavailable(f"This protocol is restricted, expecting header '{header}'")

    def _unary(self, method: Method) -> UnaryHandler:
        async def handle(data: bytes, context: Context) -> bytes:
            try:
                self._check_access(method.category, _metadata(context))
                return await method(data)
            except ConchError as error:
                await abort(context, error)
            except Exception as error:
                await abort(context, _unexpected(error))

        return handle

    async def _infer(self, data: bytes, context: Context) -> bytes:
        metadata = _metadata(context)
        answered: asyncio.Future[bytes | ConchError] = asyncio.get_running_loop().create_future()
        admitted: Pending | None = None

        def reply(answer: bytes | ConchError) -> None:
            if not answered.done():
                answered.set_result(answer)

        try:
            self._check_access("inference", metadata)
            admitted = self._endpoint.infer(data, metadata, reply)
            answer = await answered
        except ConchError as error:
            answer = error
        except asyncio.CancelledError:  # by grpcio: the client has gone, or its deadline has passed
            if admitted is not None:
                admitted.cancel()
            raise
        except Exception as error:
            answer = _unexpected(error)
        if isinstance(answer, bytes) and len(answer) > MAX_MESSAGE_SIZE:
            answer = _too_large(answer)
        if isinstance(answer, ConchError):
            await abort(context, answer)
        return answer

    async def _stream(self, _: object, context: Context) -> None:
        metadata = _metadata(context)
        try:
            self._check_access("inference", metadata)
        except ConchError as error:
            await abort(context, error)
        stream = InferStream(self._endpoint, metadata)
        reader = asyncio.create_task(_read(stream, context))
        self._streams.add(stream)
        try:
            while (message := await stream.next()) is not None:
                if len(message) > MAX_MESSAGE_SIZE:
                    raise _too_large(message)
                await context.write(message)
        except ConchError as error:
            await abort(context, error)
        except Exception as error:
            await abort(context, _unexpected(error))
        finally:
            # Also when grpcio cancels this call because the client has gone.
            self._streams.discard(stream)
            stream.cancel()
            reader.cancel()
            with suppress(asyncio.CancelledError):
                await reader


async def _read(stream: InferStream, context: Context) -> None:
    """Hand the client's messages to its stream, no faster than the stream has room for them."""
    try:
        while await stream.room():
            data: object = await context.read()
            if not isinstance(data, bytes):  # grpc.aio.EOF
                stream.end()
                return
            stream.receive(data)
    except (grpc.aio.UsageError, grpc.RpcError):
        stream.cancel()


def _metadata(context: Context) -> Metadata:
    return context.invocation_metadata() or ()


def _unexpected(error: Exception) -> ConchError:
    _log.exception("gRPC: a call failed unexpectedly", exc_info=error)
    return ConchError(f"internal error: {type(error).__name__}: {error}")


def _too_large(message: bytes) -> InvalidRequest:
    return InvalidRequest(
        f"Response has byte size {len(message)} which exceeds gRPC's byte size limit {MAX_MESSAGE_SIZE}."
    )
