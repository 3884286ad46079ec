"""Embeddings, of every API: what differs between them is an `EmbeddingDialect`."""

from collections.abc import Callable
from dataclasses import dataclass

from conch.base.errors import ConchError
from conch.domain.tensor import Buffer
from conch.protocols.http.message import HttpRefusal
from conch.protocols.openai.embeddings import EmbeddingCall, read_embedding
from conch.protocols.openai.large import join_prompts
from conch.protocols.openai.text_calls import TextCall, of_embedding
from conch.server.frontends.offload.pool import Outcome
from conch.server.frontends.openai.calls import CallReader
from conch.server.frontends.openai.errors import refusal_of
from conch.server.frontends.openai.texts import TextDialect, text_endpoint
from conch.server.frontends.parts import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingDialect:
    """How an API reads calls for embeddings, and writes answers and errors.

    `read` reads a small body, `join` what a worker process has made of a large one by `job`. `write` is the job that
    writes an answer: of the vectors, and of model, tokens, encoding and the duration so far in ns.
    """

    job: str
    read: Callable[[Buffer], EmbeddingCall]
    join: Callable[[Outcome], EmbeddingCall]
    write: str
    refusal: Callable[[ConchError], HttpRefusal] = refusal_of


def _joined(outcome: Outcome) -> EmbeddingCall:
    rest, *inputs = outcome.parts
    return read_embedding(rest, join_prompts(outcome.meta, inputs))


EMBEDDINGS = EmbeddingDialect(job="embedding", read=read_embedding, join=_joined, write="embeddings")


def embeddings_endpoint(parts: Parts, dialect: EmbeddingDialect = EMBEDDINGS) -> CallReader[TextCall]:
    """Return the handler of a path."""

    def read(body: Buffer) -> TextCall:
        return of_embedding(dialect.read(body))

    def join(outcome: Outcome) -> TextCall:
        return of_embedding(dialect.join(outcome))

    return text_endpoint(parts, TextDialect(dialect.job, read, join, dialect.write, dialect.refusal))
