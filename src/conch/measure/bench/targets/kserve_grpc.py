"""KServe v2 over gRPC, by blocking calls to find out what a server is, one connection each."""

import socket
import ssl
import struct
from typing import Any, NoReturn
from urllib.parse import unquote

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from conch.measure.bench.generator import Endpoint
from conch.measure.bench.targets.http_probe import TIMEOUT_S, client_context, first_line, place, refuse_connection
from conch.measure.bench.targets.server_api import (
    KeyNeeded,
    ListedModel,
    ServerApi,
    ServerIdentity,
    check_loading,
    listed,
    model_of_metadata,
)
from conch.measure.bench.targets.target import TargetError, TargetModel

UNIMPLEMENTED, NOT_FOUND, UNAUTHENTICATED, PERMISSION_DENIED = 12, 5, 16, 7
_OK, _UNKNOWN, _UNAVAILABLE = 0, 2, 14
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 1, 1, 4, 8, 32
_INITIAL_WINDOW_SIZE = 4
DEFAULT_WINDOW_BYTES = 65_535
MAX_WINDOW_BYTES = 2**31 - 1
MAX_FRAME_BYTES = 16_384
_STREAM = 1
_SERVICE = "/inference.GRPCInferenceService/"
_LOCKED = (UNAUTHENTICATED, PERMISSION_DENIED)
_UNKNOWN_MODEL = (NOT_FOUND, 14)  # UNAVAILABLE: it is not ready
_UNIMPLEMENTED = 12


class GrpcFailure(TargetError):
    """A call ended with a status other than OK."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NotHttp2(TargetError):
    """The server does not speak HTTP/2."""


def method_path(method: str) -> str:
    """Return the path of a method of KServe's inference service."""
    return _SERVICE + method


def speaks_http2(endpoint: Endpoint) -> bool:
    """Whether the server begins an HTTP/2 connection."""
    try:
        with _Connection(endpoint, TIMEOUT_S) as connection:
            return connection.read_frame()[0] == _SETTINGS
    except TargetError:
        return False


class GrpcProbe:
    """Calls methods of a server. The endpoint's headers go with each."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = TIMEOUT_S) -> None:
        self.endpoint = endpoint
        self._timeout_s = timeout_s

    def call(self, method: str, message: bytes) -> bytes:
        """Call a method and return its only response. Raises GrpcFailure, TargetError."""
        responses = self.responses(method_path(method), message)
        if not responses:
            raise GrpcFailure(f"{method}: no response", _UNKNOWN)
        return responses[0]

    def responses(self, path: str, message: bytes) -> list[bytes]:
        """Call a method with one message and return all responses. Raises GrpcFailure, TargetError."""
        with _Connection(self.endpoint, self._timeout_s) as connection:
            return _Call(connection, self.endpoint).run(path, message)


class _Connection:
    """Frames over a socket."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        try:
            self._socket = socket.create_connection((endpoint.host, endpoint.port), timeout_s)
            if endpoint.tls is not None:
                name = endpoint.tls.server_name or endpoint.host
                self._socket = client_context(endpoint.tls, ["h2"]).wrap_socket(self._socket, server_hostname=name)
        except OSError as error:
            refuse_connection(endpoint, error, timeout_s)
        self._buffer = b""
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, MAX_WINDOW_BYTES)
        window = struct.pack(">I", MAX_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)
        self.send(_PREFACE + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW_UPDATE, 0, 0, window))

    def __enter__(self) -> "_Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes. Raises TargetError."""
        try:
            self._socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError):
            self._closed()
        except OSError as error:
            refuse_connection(self._endpoint, error, self._timeout_s)

    def read_frame(self) -> tuple[int, int, int, bytes]:
        """Return type, flags, stream and payload of the next frame. Raises TargetError, NotHttp2."""
        head = self._read(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big") & MAX_WINDOW_BYTES
        length = int.from_bytes(head[:3], "big")
        if head.startswith(b"HTTP/1.") or kind > _CONTINUATION + 10 or length > MAX_FRAME_BYTES:
            raise NotHttp2(f"{place(self._endpoint)} does not speak gRPC: {first_line(head + self._buffer)}")
        return kind, flags, stream, self._read(length)

    def _read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                received = self._socket.recv(65_536)
            except ConnectionResetError:
                received = b""
            except OSError as error:
                refuse_connection(self._endpoint, error, self._timeout_s)
            if not received:
                self._closed()
            self._buffer += received
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _closed(self) -> NoReturn:
        tls = "" if isinstance(self._socket, ssl.SSLSocket) else "; does it expect TLS (grpcs://)?"
        raise NotHttp2(f"{place(self._endpoint)} closes the connection without an answer{tls}")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


class _Call:
    """One call on a new connection."""

    def __init__(self, connection: _Connection, endpoint: Endpoint) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._decoder = Decoder()
        self._headers: dict[str, str] = {}
        self._block = b""
        self._data = bytearray()
        self._ended = False
        self._windows = [DEFAULT_WINDOW_BYTES, DEFAULT_WINDOW_BYTES]  # of the connection and of the stream

    def run(self, path: str, message: bytes) -> list[bytes]:
        """Send the message, read to the end of the stream, and return the responses."""
        fields = [
            (":method", "POST"),
            (":scheme", "https" if self._endpoint.tls else "http"),
            (":path", path),
            (":authority", place(self._endpoint)),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "conch-bench"),
            *self._endpoint.headers,
        ]
        self._connection.send(frame(_HEADERS, _END_HEADERS, _STREAM, Encoder().encode(fields)))
        self._send(b"\0" + struct.pack(">I", len(message)) + message)
        while not self._ended:
            self._handle(*self._connection.read_frame())
        return self._result()

    def _send(self, body: bytes) -> None:
        """Send the body within the server's flow control."""
        sent = 0
        while sent < len(body) and not self._ended:
            allowed = min(*self._windows, MAX_FRAME_BYTES, len(body) - sent)
            if allowed <= 0:
                self._handle(*self._connection.read_frame())
                continue
            last = _END_STREAM if sent + allowed == len(body) else 0
            self._connection.send(frame(_DATA, last, _STREAM, body[sent : sent + allowed]))
            self._windows = [window - allowed for window in self._windows]
            sent += allowed

    def _handle(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(payload) - 5, 6):
                setting, value = struct.unpack_from(">HI", payload, at)
                if setting == _INITIAL_WINDOW_SIZE:
                    self._windows[1] += value - DEFAULT_WINDOW_BYTES
            self._connection.send(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._connection.send(frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            self._windows[1 if stream else 0] += int.from_bytes(payload[:4], "big") & MAX_WINDOW_BYTES
        elif kind == _DATA:
            self._data += _unpadded(payload, flags)
        elif kind in (_HEADERS, _CONTINUATION):
            content = _unpadded(payload, flags) if kind == _HEADERS else payload
            self._block += content[5:] if kind == _HEADERS and flags & _PRIORITY else content
            if flags & _END_HEADERS:
                self._read_block()
        elif kind == _RST_STREAM:
            raise GrpcFailure(f"{place(self._endpoint)} reset the stream", _UNAVAILABLE)
        elif kind == _GOAWAY:
            detail = first_line(payload[8:])
            raise GrpcFailure(f"{place(self._endpoint)} closed the connection: {detail}", _UNAVAILABLE)
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            self._ended = True

    def _read_block(self) -> None:
        try:
            self._headers.update(_text_fields(self._decoder.decode(self._block, raw=True)))
        except HPACKError as error:
            raise NotHttp2(f"{place(self._endpoint)} sends invalid HTTP/2 headers: {error}") from None
        self._block = b""

    def _result(self) -> list[bytes]:
        status = self._headers.get("grpc-status", "")
        if not status.isdigit():
            http = self._headers.get(":status", "none")
            raise NotHttp2(f"{place(self._endpoint)} speaks HTTP/2, but not gRPC: HTTP status {http}")
        if int(status) != _OK:
            raise GrpcFailure(unquote(self._headers.get("grpc-message", "")) or f"gRPC status {status}", int(status))
        return _messages(bytes(self._data))


def _unpadded(payload: bytes, flags: int) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload


def _text_fields(fields: object) -> dict[str, str]:
    found: dict[str, str] = {}
    if isinstance(fields, list):
        for field in fields:
            found[bytes(field[0]).decode("latin-1")] = bytes(field[1]).decode("latin-1")
    return found


def _messages(data: bytes) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while at + 5 <= len(data):
        length = int.from_bytes(data[at + 1 : at + 5], "big")
        found.append(data[at + 5 : at + 5 + length])
        at += 5 + length
    return found


class KServeGrpc(ServerApi):
    """The service GRPCInferenceService."""

    def __init__(self, probe: GrpcProbe) -> None:
        self._probe = probe

    def identity(self) -> ServerIdentity | None:
        document = self._call("ServerMetadata", "ServerMetadataRequest", "ServerMetadataResponse", {})
        return None if document is None else ServerIdentity(document.get("name", ""), document.get("version", ""))

    def models(self) -> list[ListedModel] | None:
        document = self._call("RepositoryIndex", "RepositoryIndexRequest", "RepositoryIndexResponse", {})
        return None if document is None else [listed(row) for row in document.get("models", ())]

    def model(self, name: str, version: str) -> TargetModel | None:
        fields = {"name": name, "version": version}
        try:
            metadata = self._call("ModelMetadata", "ModelMetadataRequest", "ModelMetadataResponse", fields)
        except GrpcFailure as failure:
            check_loading(failure.message)
            if failure.status in _UNKNOWN_MODEL:
                return None
            raise
        if metadata is None:
            return None
        try:
            found = self._call("ModelConfig", "ModelConfigRequest", "ModelConfigResponse", fields)
        except GrpcFailure:
            found = None
        return model_of_metadata(metadata, (found or {}).get("config"), version)

    def _call(self, method: str, request: str, response: str, fields: dict[str, str]) -> dict[str, Any] | None:
        """Return the response as a document, or None if the server does not have the method."""
        from google.protobuf.json_format import MessageToDict

        from conch.domain.triton_messages import service_pb2

        try:
            data = self._probe.call(method, getattr(service_pb2, request)(**fields).SerializeToString())
        except GrpcFailure as failure:
            if failure.status in _LOCKED:
                raise KeyNeeded(f"{method} needs a key ({failure.message}); give it with --api-key-file") from None
            if failure.status == _UNIMPLEMENTED:
                return None
            raise
        message = getattr(service_pb2, response).FromString(data)
        document: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
        return document
