"""`/v1/files` and `/v1/batches`, with `--batch-dir`. Files and batches are visible to their tenant only."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from conch.base.errors import ConchError, InvalidRequest, Unavailable, Unsupported
from conch.protocols.http.long_replies import ReplyTasks
from conch.protocols.http.message import HttpRequest, content_type, header
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.batches import read_batch, read_upload
from conch.protocols.openai.pages import page_of
from conch.server.frontends.openai.batches.runner import BatchRunner
from conch.server.frontends.openai.batches.store import StoredFile
from conch.server.frontends.openai.errors import JSON, send_error
from conch.server.frontends.parts import Parts

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_PIECE_BYTES = 1 << 20
_CONTENT = content_type(b"application/octet-stream") + header(b"Content-Disposition", b"attachment")


class BatchApi:
    """Handlers of the paths."""

    def __init__(self, parts: Parts) -> None:
        self._runner = parts.batches
        self._tenants = parts.tenants
        self._tasks = ReplyTasks(send_error)

    def upload(self, request: HttpRequest, reply: HttpReply) -> None:
        """Keep a file."""
        runner, owner = self._for(request)
        sent = request.headers.get(b"content-type", b"").decode("latin-1")

        async def work() -> None:
            upload = await runner.blocking(read_upload, sent, request.body)
            file = await _written(
                runner,
                runner.store.add_file,
                owner,
                upload.filename,
                upload.purpose,
                upload.content,
                upload.expires_after_s,
            )
            reply.send(200, JSON, orjson.dumps(file.document()))

        self._tasks.run(reply, work())

    def files(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with files, the newest first. Raises InvalidField."""
        runner, owner = self._for(request)
        files = [file for file in list(runner.store.files.values()) if file.owner == owner]
        reply.send(200, JSON, page_of([file.document() for file in _newest_first(files)], request.query))

    def file(self, request: HttpRequest, reply: HttpReply, file_id: str) -> None:
        """Answer with one file, or delete it. Raises NotFound."""
        runner, owner = self._for(request)
        file = runner.store.file(file_id, owner)
        if request.method == b"DELETE":
            self._tasks.run(reply, _deleted(runner, file, reply))
        else:
            reply.send(200, JSON, orjson.dumps(file.document()))

    def content(self, request: HttpRequest, reply: HttpReply, file_id: str) -> None:
        """Answer with the content of a file. Raises NotFound."""
        runner, owner = self._for(request)
        file = runner.store.file(file_id, owner)

        self._tasks.run(reply, _sent(runner, runner.store.content(file.id), reply))

    def create(self, request: HttpRequest, reply: HttpReply) -> None:
        """Begin a batch. Raises InvalidField, NotFound."""
        runner, owner = self._for(request)
        call = read_batch(request.body, runner.routes)
        file = runner.store.file(call.input_file_id, owner)
        if file.purpose != "batch":
            raise InvalidRequest(
                f"the purpose of file '{file.id}' is {file.purpose}; a batch needs one of purpose batch"
            )

        async def work() -> None:
            batch = await _written(
                runner,
                runner.store.add_batch,
                owner,
                file,
                call.endpoint,
                call.window,
                call.window_s,
                dict(call.metadata),
            )
            runner.wake()
            reply.send(200, JSON, orjson.dumps(batch.document()))

        self._tasks.run(reply, work())

    def batches(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with batches, the newest first. Raises InvalidField."""
        runner, owner = self._for(request)
        batches = [batch for batch in list(runner.store.batches.values()) if batch.owner == owner]
        reply.send(200, JSON, page_of([batch.document() for batch in _newest_first(batches)], request.query))

    def batch(self, request: HttpRequest, reply: HttpReply, batch_id: str) -> None:
        """Answer with one batch. Raises NotFound."""
        runner, owner = self._for(request)
        reply.send(200, JSON, orjson.dumps(runner.store.batch(batch_id, owner).document()))

    def cancel(self, request: HttpRequest, reply: HttpReply, batch_id: str) -> None:
        """Cancel a batch; it is soon cancelled. Raises NotFound, InvalidRequest."""
        runner, owner = self._for(request)
        batch = runner.store.batch(batch_id, owner)
        if batch.ended:
            raise InvalidRequest(f"Cannot cancel a batch with status '{batch.status}'.")
        if batch.status != "cancelling":
            batch.become("cancelling")
            runner.wake()
        reply.send(200, JSON, orjson.dumps(batch.document()))

    def _for(self, request: HttpRequest) -> tuple[BatchRunner, str]:
        """Return the runner, and the tenant of a request. Raises Unsupported."""
        if self._runner is None:
            raise Unsupported("files and batches need a folder to be kept in; the server has none (--batch-dir)")
        return self._runner, self._tenants.of_http(request)


async def _deleted(runner: BatchRunner, file: StoredFile, reply: HttpReply) -> None:
    await _written(runner, runner.store.delete_file, file)
    reply.send(200, JSON, orjson.dumps({"id": file.id, "object": "file", "deleted": True}))


async def _sent(runner: BatchRunner, path: Path, reply: HttpReply) -> None:
    """Answer with a file, of which there are few pieces in memory, however slowly the client reads."""
    offset, piece = 0, await _written(runner, _piece, path, 0)
    if len(piece) < _PIECE_BYTES:
        reply.send(200, _CONTENT, piece)
        return
    reply.begin(200, _CONTENT)
    while piece and reply.open:
        reply.write(piece)
        await reply.drained()
        offset += len(piece)
        try:
            piece = await _written(runner, _piece, path, offset)
        except ConchError:  # the file was deleted meanwhile
            reply.fail()
            return
    reply.end()


def _piece(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(_PIECE_BYTES)


async def _written(runner: BatchRunner, work: Callable[..., Any], *args: Any) -> Any:
    """Run a method of the store. Raises ConchError."""
    try:
        return await runner.blocking(partial(work, *args))
    except OSError as error:
        raise Unavailable(f"the folder of --batch-dir cannot be used: {error.strerror}") from error


def _newest_first(stored: list[Any]) -> list[Any]:
    return sorted(stored, key=lambda entry: entry.created_at, reverse=True)
