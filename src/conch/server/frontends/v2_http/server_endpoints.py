# Compiled by mypyc in wheels.
"""Health, metadata, configuration and statistics of the server and its models: KServe v2, and vLLM's paths."""

from typing import Final

import orjson

import conch
from conch.base.errors import InvalidRequest
from conch.protocols.http.errors import JSON
from conch.protocols.http.long_replies import ReplyTasks, send_in_slices
from conch.protocols.http.message import NO_HEADERS, HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.protocols.v2_json import documents
from conch.server.core.inference import Inference
from conch.server.frontends.parts import Parts

_TEXT: Final = content_type(b"text/plain")
# KServe's Python client parses these documents of its protocol. Triton sends no body.
_LIVE, _READY = b'{"live":true}', b'{"ready":true}'


class ServerEndpoints:
    """Handlers that read what the server is and has."""

    def __init__(self, parts: Parts, tasks: ReplyTasks) -> None:
        options = parts.options
        self._inference: Inference = parts.inference
        self._tasks = tasks
        # Health is answered with a document, as KServe does, or without, as Triton does.
        self._live_body, self._ready_body = (_LIVE, _READY) if options.model_dir else (b"", b"")
        self._metadata = documents.server_metadata(
            options.id, conch.__version__, shared_memory=parts.shared_memory is not None
        )

    def server_metadata(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the name, the version and the extensions of the server."""
        reply.send(200, JSON, self._metadata)

    def live(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer whether the server is live."""
        _send_health(reply, self._inference.live(), self._live_body)

    def ready(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer whether the server is ready."""
        _send_health(reply, self._inference.ready(), self._ready_body)

    def all_statistics(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the statistics of all models."""
        send_in_slices(reply, JSON, documents.statistics_pieces(self._inference.statistics()))

    def model_ready(self, _request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer whether a model is ready. Raises ConchError."""
        self._tasks.run(reply, self._check_model_ready(reply, name, version))

    async def _check_model_ready(self, reply: HttpReply, name: str, version: int | None) -> None:
        if not await self._inference.model_ready(name, version):
            state = self._inference.unserved(name)
            raise InvalidRequest(f"Model version not ready: {state}" if state else "Model version not ready")
        reply.send(200, _TEXT)

    def model_metadata(self, _request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer with the inputs and outputs of a model. Raises ConchError."""
        model = self._inference.model(name, version)
        versions = self._inference.versions(name) if version is None else [version]
        reply.send(200, JSON, documents.model_metadata(model.config, versions))

    def model_config(self, _request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer with the configuration of a model. Raises ConchError."""
        reply.send(200, JSON, documents.model_config(self._inference.model(name, version).config))

    def model_statistics(self, _request: HttpRequest, reply: HttpReply, name: str, version: int | None) -> None:
        """Answer with the statistics of a model. Raises ConchError."""
        reply.send(200, JSON, documents.model_statistics(self._inference.statistics(name, version)))

    def version(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the version of the server, as vLLM does."""
        reply.send(200, JSON, orjson.dumps({"version": conch.__version__}))

    def alive(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer that the server is live, as Triton's OpenAI frontend does."""
        reply.send(200, NO_HEADERS)

    def ready_or_400(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer whether the server is ready, as Triton's OpenAI frontend does."""
        reply.send(200 if self._inference.ready() else 400, NO_HEADERS)

    def ready_or_503(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer whether the server is ready, as vLLM does."""
        reply.send(200 if self._inference.ready() else 503, NO_HEADERS)


def _send_health(reply: HttpReply, healthy: bool, document: bytes) -> None:
    if healthy:
        reply.send(200, JSON if document else _TEXT, document)
    else:
        reply.send(400, _TEXT)
