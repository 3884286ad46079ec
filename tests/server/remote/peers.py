"""Peers of remote repositories: an S3 server in this process, archive servers, and a faulty proxy."""

import http.client
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import boto3

IDENTITY = (
    'backend: "identity" input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } '
    'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }'
)


class S3:
    """A bucket of a real S3 API server, moto's."""

    def __init__(self, endpoint: str, bucket: str) -> None:
        self.endpoint = endpoint
        self.bucket = bucket
        self._client = boto3.client(
            "s3", endpoint_url=endpoint, aws_access_key_id="k", aws_secret_access_key="s", region_name="us-east-1"
        )
        self._client.create_bucket(Bucket=bucket)

    def put(self, key: str, body: bytes | str) -> None:
        """Write an object; a key that ends with a slash is what a console makes of an empty folder."""
        self._client.put_object(Bucket=self.bucket, Key=key, Body=body)

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._client.delete_object(Bucket=self.bucket, Key=key)

    def put_identity(self, model: str, version: int = 1, weights: bytes = b"") -> None:
        """Write a model of the identity backend, with a file of no use in its version."""
        self.put(f"repo/{model}/config.pbtxt", IDENTITY)
        self.put(f"repo/{model}/{version}/weights.bin" if weights else f"repo/{model}/{version}/", weights)


@dataclass
class Seen:
    """One request that a server has had."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Reply:
    """An answer. With `cut`, the connection ends after `cut` bytes of the body; with `trickles`, the rest trickles."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    trickles: bool = False


class HttpPeer:
    """A server of plain HTTP that replies with `answer` and records its requests."""

    def __init__(self, answer: Callable[[Seen], Reply]) -> None:
        self.seen: list[Seen] = []
        peer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                self.rfile.read(length)
                seen = Seen(self.command, self.path, {key.lower(): value for key, value in self.headers.items()})
                peer.seen.append(seen)
                reply = answer(seen)
                self.send_response(reply.status)
                for key, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                    self.send_header(key, value)
                self.end_headers()
                with suppress(ConnectionError):  # the client has disconnected
                    self.wfile.write(b"" if self.command == "HEAD" else reply.body[: reply.cut])
                    for byte in reply.body[reply.cut :] if reply.trickles else b"":
                        self.wfile.write(bytes([byte]))
                        time.sleep(0.02)
                self.close_connection = reply.cut is not None

            do_HEAD = do_PUT = do_POST = do_GET

            def log_message(self, *arguments: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class FaultyProxy(HttpPeer):
    """A proxy that forwards requests unless `fault` returns a reply."""

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target).netloc
        self.fault: Callable[[Seen, Callable[[], Reply]], Reply | None] = lambda seen, real: None
        super().__init__(lambda seen: self.fault(seen, lambda: self._real(seen)) or self._real(seen))

    def _real(self, seen: Seen) -> Reply:
        connection = http.client.HTTPConnection(self._target, timeout=30)
        try:
            connection.request(seen.method, seen.path, headers=seen.headers)
            response = connection.getresponse()
            body = response.read()
            kept = {"content-type", "etag", "last-modified", "content-range", "accept-ranges", "docker-content-digest"}
            headers = {key: value for key, value in response.getheaders() if key.lower() in kept}
            return Reply(response.status, body, headers)
        finally:
            connection.close()


def archive_server(body: Callable[[], bytes], etag: Callable[[], str]) -> HttpPeer:
    """A server of one archive that knows ETags, conditions and ranges."""

    def answer(seen: Seen) -> Reply:
        content, headers = body(), {"ETag": etag()}
        if seen.headers.get("if-match", etag()) != etag():
            return Reply(412)
        if asked := seen.headers.get("range"):
            first, last = asked.removeprefix("bytes=").split("-")
            part = content[int(first) : int(last) + 1]
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
            return Reply(206, part, {**headers, "Content-Range": span})
        return Reply(200, content, headers)

    return HttpPeer(answer)
