"""Rerank, score, classify, pooling and Cohere's embed: requests as values, and their answers.

Paths and forms are those that clients of retrieval use: rerank of Cohere (v1 and v2) and Jina in one form; score,
classify and pooling of vLLM; embed of Cohere (v1 and v2).
"""

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import orjson

from conch.domain.llm.text_model import Task
from conch.domain.tensor import Buffer
from conch.protocols.openai.embeddings import MAX_INPUTS, EmbeddingCall, truncation
from conch.protocols.openai.field_rules import CLASSIFY, COHERE_EMBED, POOLING, RERANK, SCORE
from conch.protocols.openai.fields import Fields, IgnoredField, InvalidField, read_object
from conch.protocols.openai.nested_fields import NestedRules

Rows = Sequence[npt.NDArray[np.float32]]

# Of one call.
MAX_TEXT_BYTES = 16 * 2**20
# As in Cohere's API; its clients send more texts in several calls.
MAX_COHERE_TEXTS = 96
_INPUTS = NestedRules("inputs[].", COHERE_EMBED)
_DEFAULT_DOCUMENT_TOKENS = 4096
_COHERE_TYPES = ("float", "int8", "uint8", "binary", "ubinary", "base64")
# Types of inputs in Cohere's API → names of sentence-transformers' prompts.
_SCALARS = (
    *("model", "by_token", "limit", "keep_last", "document_tokens", "raw", "dimensions", "options", "ignored"),
    "fields",
)
PROMPTS = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCall:
    """A request about texts. With `others`, of pairs: of each with the text of its place, or with the only one.

    `limit` tokens are kept of each text, 0: longer texts are refused, -1: the model's maximum; of a query and a
    document only the document is truncated, also to `document_tokens` (None: not a rerank). `raw` asks for logits, or
    vectors as they are. `options` are JSON values for the answer. `fields` are those of `texts` and `others`.
    """

    model: str
    texts: Sequence[str | Sequence[int]]
    others: Sequence[str] = ()
    task: Task | None = None
    by_token: bool = False
    limit: int = 0
    keep_last: bool = False
    document_tokens: int | None = None
    raw: bool = False
    dimensions: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    ignored: Sequence[IgnoredField] = ()
    fields: Sequence[str] = ("input", "")

    def text_name(self, place: int, *, paired: bool) -> str:
        """Name the text at a place in messages: of `texts` and then `others`, or of the pairs that they make."""
        field, other = self.fields
        if paired:
            return f"number {place} of '{other}', with its '{field}',"
        if place >= len(self.texts):
            return f"number {place - len(self.texts)} of '{other}'"
        return f"number {place} of '{field}'" if len(self.texts) > 1 else f"'{field}'"


@dataclass(frozen=True, slots=True)
class TextAnswer:
    """What a call is answered with: a row for each text or pair, the number of tokens, and names of labels."""

    model: str
    options: Mapping[str, Any]
    rows: Rows
    tokens: int
    labels: Sequence[str]


def read_rerank(body: Buffer) -> TextCall:
    """Read a request of Cohere's or Jina's rerank. Raises InvalidField."""
    fields = Fields(read_object(body), RERANK)
    model, query = fields.required_text("model"), fields.required_text("query")
    if not query.strip():
        raise fields.wrong("query", "'query' must not be empty")
    documents = fields.list("documents")
    if not documents:
        raise fields.wrong("documents", "'documents' must be an array with at least one document")
    if len(documents) > MAX_INPUTS:
        raise fields.wrong("documents", f"'documents' may hold {MAX_INPUTS} documents at most, got {len(documents)}")
    ranked = fields.texts("rank_fields")
    texts = [_document(fields, number, document, ranked) for number, document in enumerate(documents)]
    top, limit = fields.integer("top_n"), fields.integer("max_tokens_per_doc")
    if top is not None and top < 0:
        raise fields.wrong("top_n", f"'top_n' must be at least 1, or 0 for all documents, got {top}")
    if limit is not None and limit < 1:
        raise fields.wrong("max_tokens_per_doc", f"'max_tokens_per_doc' must be at least 1, got {limit}")
    truncate, keep_last = truncation(fields)
    returns = fields.boolean("return_documents")
    raw = not fields.boolean("use_activation", default=True) or fields.boolean("raw_scores")
    returned = [{"text": document} if isinstance(document, str) else document for document in documents]
    return _checked(
        TextCall(
            model=model,
            texts=[query],
            others=texts,
            task=Task.SCORE,
            limit=truncate or -1,
            keep_last=keep_last,
            document_tokens=limit or _DEFAULT_DOCUMENT_TOKENS,
            raw=raw,
            ignored=fields.done(),
            fields=("query", "documents"),
            options={"kind": "rerank", "top": top, "documents": returned if returns else None},
        )
    )


def read_score(body: Buffer) -> TextCall:
    """Read a request of vLLM's score: one text with one or several, or pairs of as many. Raises InvalidField."""
    fields = Fields(read_object(body), SCORE)
    model = fields.required_text("model")
    names = next(
        (
            names
            for names in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
            if _has(fields, names)
        ),
        ("text_1", "text_2"),
    )
    firsts, others = (_strings(fields, name) for name in names)
    if len(firsts) not in (1, len(others)):
        raise fields.wrong(
            names[0],
            f"'{names[0]}' must hold one text, or as many as '{names[1]}': got {len(firsts)} and {len(others)}",
        )
    truncate, keep_last = truncation(fields)
    raw = not fields.boolean("use_activation", default=fields.boolean("activation", default=True))
    return _checked(
        TextCall(
            model=model,
            texts=firsts,
            others=others,
            task=Task.SCORE,
            limit=truncate,
            keep_last=keep_last,
            raw=raw,
            options={"kind": "score"},
            ignored=fields.done(),
            fields=names,
        )
    )


def read_classify(body: Buffer) -> TextCall:
    """Read a request of vLLM's classify. Raises InvalidField."""
    fields = Fields(read_object(body), CLASSIFY)
    model, texts = fields.required_text("model"), _inputs(fields)
    truncate, keep_last = truncation(fields)
    raw = not fields.boolean("use_activation", default=fields.boolean("activation", default=True))
    return _checked(
        TextCall(
            model=model,
            texts=texts,
            task=Task.CLASSIFY,
            limit=truncate,
            keep_last=keep_last,
            raw=raw,
            options={"kind": "classify"},
            ignored=fields.done(),
        )
    )


def read_pooling(body: Buffer) -> TextCall:
    """Read a request of vLLM's pooling: what the model gives, or what `task` says. Raises InvalidField."""
    fields = Fields(read_object(body), POOLING)
    model, texts = fields.required_text("model"), _inputs(fields)
    named, encoding = fields.text("task"), fields.text("encoding_format") or "float"
    tasks = {None: None, "embed": Task.EMBED, "token_embed": Task.EMBED, "classify": Task.CLASSIFY}
    if named not in tasks:
        raise fields.wrong("task", f"'task' must be 'embed', 'token_embed' or 'classify', got '{named}'")
    if encoding not in ("float", "base64"):
        raise fields.wrong("encoding_format", f"'encoding_format' must be 'float' or 'base64', got '{encoding}'")
    dimensions = _dimensions(fields, "dimensions")
    truncate, keep_last = truncation(fields)
    raw = not fields.boolean("use_activation", default=fields.boolean("normalize", default=True))
    return _checked(
        TextCall(
            model=model,
            texts=texts,
            task=tasks[named],
            by_token=named == "token_embed",
            limit=truncate,
            keep_last=keep_last,
            raw=raw,
            dimensions=dimensions,
            options={"kind": "pooling", "encoding": encoding},
            ignored=fields.done(),
        )
    )


def read_cohere_embed(body: Buffer, version: str = "2") -> TextCall:
    """Read a request of Cohere's embed. Raises InvalidField."""
    fields = Fields(read_object(body), COHERE_EMBED)
    model = fields.required_text("model")
    texts = [*fields.texts("texts")] or [
        _content(fields, number, entry) for number, entry in enumerate(fields.list("inputs") or ())
    ]
    fields.ignore(*_INPUTS.undecided(fields.take("inputs")))
    if not texts or not all(texts):
        raise fields.wrong("texts", "'texts' must hold at least one text, and none that is empty")
    if len(texts) > MAX_COHERE_TEXTS:
        raise fields.wrong("texts", f"'texts' may hold {MAX_COHERE_TEXTS} texts at most, got {len(texts)}")
    kind = fields.text("input_type")
    if kind is not None and kind not in PROMPTS:
        raise fields.wrong("input_type", f"'input_type' must be one of {', '.join(PROMPTS)}, got '{kind}'")
    types = fields.texts("embedding_types")
    unknown = next((name for name in types if name not in _COHERE_TYPES), "")
    if unknown:
        allowed = ", ".join(_COHERE_TYPES)
        raise fields.wrong("embedding_types", f"'embedding_types' may hold {allowed}; got '{unknown}'")
    side = fields.text("truncate") or "END"
    if side not in ("NONE", "START", "END"):
        raise fields.wrong("truncate", f"'truncate' must be 'NONE', 'START' or 'END', got '{side}'")
    most = fields.integer("max_tokens")
    if most is not None and most < 1:
        raise fields.wrong("max_tokens", f"'max_tokens' must be at least 1, got {most}")
    dimensions = _dimensions(fields, "output_dimension")
    return _checked(
        TextCall(
            model=model,
            texts=texts,
            task=Task.EMBED,
            limit=0 if side == "NONE" else most or -1,
            keep_last=side == "START",
            dimensions=dimensions,
            ignored=fields.done(),
            fields=("texts", ""),
            options={"kind": "cohere_embed", "types": types, "input_type": kind, "version": version, "texts": texts},
        )
    )


def of_embedding(call: EmbeddingCall) -> TextCall:
    """Return a request for embeddings as one about texts."""
    return TextCall(
        model=call.model,
        texts=call.inputs,
        task=Task.EMBED,
        limit=call.truncate or 0,
        keep_last=call.keep_last,
        dimensions=call.dimensions,
        options={"encoding": call.encoding},
        ignored=call.ignored,
    )


def read_cohere_embed_v1(body: Buffer) -> TextCall:
    """Read a request of version 1 of Cohere's embed. Raises InvalidField."""
    return read_cohere_embed(body, "1")


READERS: Mapping[str, Callable[[Buffer], TextCall]] = {
    "rerank": read_rerank,
    "score": read_score,
    "classify": read_classify,
    "pooling": read_pooling,
    "cohere_embed": read_cohere_embed,
    "cohere_embed_v1": read_cohere_embed_v1,
}


def write_rerank(answer: TextAnswer) -> bytes:
    """Write the documents by falling score, with the fields of Cohere's and of Jina's answers."""
    scores = [float(row[0]) for row in answer.rows]
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[: answer.options["top"] or None]
    documents = answer.options["documents"]
    results = []
    for place in order:
        result: dict[str, Any] = {"index": place, "relevance_score": scores[place]}
        if documents is not None:
            result["document"] = documents[place]
        results.append(result)
    # A search unit is a query with up to 100 documents.
    units = {"search_units": ceil(len(scores) / 100)}
    return _document_of(
        "rerank", answer, {"results": results, "meta": {"api_version": {"version": "2"}, "billed_units": units}}
    )


def write_score(answer: TextAnswer) -> bytes:
    """Write the scores of pairs."""
    data = [{"index": index, "object": "score", "score": float(row[0])} for index, row in enumerate(answer.rows)]
    return _document_of("score", answer, {"object": "list", "created": int(time.time()), "data": data})


def write_classify(answer: TextAnswer) -> bytes:
    """Write the probabilities of the classes of each text."""
    data = [
        {
            "index": index,
            "label": answer.labels[int(row.argmax())] if answer.labels else None,
            "probs": row,
            "num_classes": len(row),
        }
        for index, row in enumerate(answer.rows)
    ]
    return _document_of("classify", answer, {"object": "list", "created": int(time.time()), "data": data})


def write_pooling(answer: TextAnswer) -> bytes:
    """Write what the model gives for each text: a vector, probabilities, or vectors of its tokens."""
    numbers = answer.options["encoding"] == "float"
    data = [
        {"index": index, "object": "pooling", "data": np.ascontiguousarray(row) if numbers else _base64(row)}
        for index, row in enumerate(answer.rows)
    ]
    return _document_of("pool", answer, {"object": "list", "created": int(time.time()), "data": data})


def write_cohere_embed(answer: TextAnswer) -> bytes:
    """Write vectors in the types that the client asks for."""
    types, version = answer.options["types"], answer.options["version"]
    meta = {"api_version": {"version": version}, "billed_units": {"input_tokens": answer.tokens}}
    document: dict[str, Any] = {"id": str(uuid4()), "texts": answer.options["texts"], "meta": meta}
    if version == "1" and not types:
        document |= {"response_type": "embeddings_floats", "embeddings": _contiguous(answer.rows)}
    else:
        vectors = {name: [_COHERE[name](row) for row in answer.rows] for name in types or ("float",)}
        document |= {"response_type": "embeddings_by_type", "embeddings": vectors}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


WRITERS: Mapping[str, Callable[[TextAnswer], bytes]] = {
    "rerank": write_rerank,
    "score": write_score,
    "classify": write_classify,
    "pooling": write_pooling,
    "cohere_embed": write_cohere_embed,
}


def split_call(call: TextCall) -> tuple[dict[str, Any], list[Buffer]]:
    """Return the metadata and parts of which `join_call` makes the call in another process."""
    texts = [*call.texts, *call.others]
    rest = {name: getattr(call, name) for name in _SCALARS}
    rest["task"] = call.task and call.task.value
    rest["ignored"] = [tuple(field) for field in call.ignored]  # orjson takes no named tuples
    meta = {"first": len(call.texts), "texts": [isinstance(text, str) for text in texts]}
    parts = [text.encode() if isinstance(text, str) else np.array(text, "<i4").tobytes() for text in texts]
    return meta, [orjson.dumps(rest), *parts]


def join_call(meta: Mapping[str, Any], parts: Sequence[Buffer]) -> TextCall:
    """Return the call that `split_call` has split."""
    rest = orjson.loads(parts[0])
    rest["task"] = rest["task"] and Task(rest["task"])
    rest["ignored"] = [IgnoredField(*entry) for entry in rest["ignored"]]
    texts: list[Any] = [
        str(part, "utf-8") if is_text else np.frombuffer(part, "<i4").tolist()
        for is_text, part in zip(meta["texts"], parts[1:], strict=True)
    ]
    return TextCall(texts=texts[: meta["first"]], others=texts[meta["first"] :], **rest)


def write_answer(args: Mapping[str, Any], parts: Sequence[Buffer]) -> bytes:
    """Write an answer of its model, options, number of tokens, labels and rows, of which `shapes` has the shapes."""
    rows = [np.frombuffer(part, "<f4").reshape(shape) for part, shape in zip(parts, args["shapes"], strict=True)]
    options = args["options"]
    return WRITERS[options["kind"]](TextAnswer(args["model"], options, rows, args["tokens"], args["labels"]))


def _document_of(prefix: str, answer: TextAnswer, members: Mapping[str, Any]) -> bytes:
    usage = {"prompt_tokens": answer.tokens, "total_tokens": answer.tokens}
    document = {"id": f"{prefix}-{uuid4().hex}", "model": answer.model, **members, "usage": usage}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _int8(row: npt.NDArray[np.float32]) -> npt.NDArray[np.int8]:
    """Scale a vector so that its largest element is 127: its direction, and so each cosine, is kept."""
    scaled: npt.NDArray[np.float32] = np.rint(row * (127 / max(float(np.abs(row).max()), 1e-12)))
    return scaled.astype(np.int8)


def _bits(row: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    return np.packbits(row > 0)


def _base64(row: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(np.ascontiguousarray(row, "<f4").tobytes()).decode("ascii")


def _contiguous(rows: Rows) -> list[npt.NDArray[np.float32]]:
    return [np.ascontiguousarray(row, np.float32) for row in rows]


_COHERE: Mapping[str, Callable[[npt.NDArray[np.float32]], Any]] = {
    "float": lambda row: np.ascontiguousarray(row, np.float32),
    "int8": _int8,
    "uint8": lambda row: (_int8(row).astype(np.int16) + 128).astype(np.uint8),
    "binary": lambda row: (_bits(row).astype(np.int16) - 128).astype(np.int8),
    "ubinary": _bits,
    "base64": _base64,
}


def _document(fields: Fields, number: int, document: Any, ranked: Sequence[str]) -> str:
    """Return the text of a document that is a string, an object with `text`, or one with the fields to rank by."""
    if isinstance(document, str):
        return document
    where = f"document number {number} of 'documents'"
    if not isinstance(document, dict):
        raise fields.wrong("documents", f"{where} must be a string, or an object with the member 'text'")
    missing = next((name for name in ranked or ("text",) if not isinstance(document.get(name), str)), "")
    if missing:
        raise fields.wrong("documents", f"{where} lacks the text '{missing}'")
    # As Cohere joins them.
    return "\n".join(f"{name}: {document[name]}" for name in ranked) if ranked else str(document["text"])


def _content(fields: Fields, number: int, entry: Any) -> str:
    """Return the text of an entry of Cohere's `inputs`."""
    parts = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(parts, list) or not parts:
        raise fields.wrong("inputs", f"number {number} of 'inputs' must be an object with the array 'content'")
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise fields.wrong("inputs", f"number {number} of 'inputs' must hold texts; images are not supported")
        texts.append(text)
    return "\n".join(texts)


def _inputs(fields: Fields) -> Sequence[str | Sequence[int]]:
    texts = fields.prompts("input", MAX_INPUTS)
    if not all(texts):
        raise fields.wrong("input", "'input' must not hold an empty text")
    if len({isinstance(text, str) for text in texts}) > 1:
        raise fields.wrong("input", "'input' must hold either texts or token ids, not both")
    return texts


def _strings(fields: Fields, name: str) -> Sequence[str]:
    texts = fields.texts(name)
    if not texts:
        raise fields.wrong(name, f"'{name}' must be a text or an array of texts")
    if len(texts) > MAX_INPUTS:
        raise fields.wrong(name, f"'{name}' may hold {MAX_INPUTS} texts at most, got {len(texts)}")
    return texts


def _has(fields: Fields, names: tuple[str, str]) -> bool:
    return None not in [fields.take(name) for name in names]


def _dimensions(fields: Fields, name: str) -> int | None:
    dimensions = fields.integer(name)
    if dimensions is not None and dimensions < 1:
        raise fields.wrong(name, f"'{name}' must be at least 1, got {dimensions}")
    return dimensions


def _checked(call: TextCall) -> TextCall:
    """Return a call. Raises InvalidField for too many bytes of text."""
    # A character has up to four bytes; most texts need not be encoded to know that they fit.
    characters = sum(len(text) for text in (*call.texts, *call.others))
    if characters * 4 > MAX_TEXT_BYTES:
        size = sum(
            len(text.encode()) if isinstance(text, str) else 4 * len(text) for text in (*call.texts, *call.others)
        )
        if size > MAX_TEXT_BYTES:
            raise InvalidField(None, f"a request may hold {MAX_TEXT_BYTES} bytes of text at most, got {size}")
    return call
