"""Ollama's API, behind `--ollama-api`: its clients generate, embed and list models; they cannot change the models."""

from functools import partial
from hashlib import sha256
from typing import Any

import orjson

from conch.base.errors import ConchError, InvalidRequest, Unsupported
from conch.domain.llm.output import has_reasoning
from conch.domain.request import Timeline
from conch.protocols.generation_form import GenerationForm
from conch.protocols.http.errors import JSON, retry_after
from conch.protocols.http.message import HttpRefusal, HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.protocols.ollama import replies
from conch.protocols.ollama.requests import (
    join_chat,
    join_generate,
    read_chat,
    read_embed,
    read_embeddings,
    read_generate,
    read_model,
)
from conch.protocols.openai.replies import ModelEntry
from conch.protocols.openai.requests import ChatCall, CompletionCall
from conch.server.core.generative_model import GenerativeModel
from conch.server.frontends.openai.calls import CallReader
from conch.server.frontends.openai.errors import refusal_of
from conch.server.frontends.openai.generations import AdmittedCall, Dialect, Generations
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.openai.texts import embedding_dialect, text_endpoint
from conch.server.frontends.parts import Parts

# The version of Ollama whose API this is; clients look for features by it.
_VERSION = "0.13.0"
_TEXT = content_type(b"text/plain; charset=utf-8")
_REASONS = {
    "pull": "the server does not download models for clients; `conch repo add` adds them to a repository",
    "push": "the server does not upload models; `conch repo` manages repositories",
    "create": "models come from the model repository; `conch repo add` adds them to one",
    "copy": "models come from the model repository, in which a folder is a model",
    "delete": "models come from the model repository, from which clients cannot delete them",
    "blobs": "models come from the model repository; clients cannot upload files",
}

_Call = ChatCall | CompletionCall


def refusal(error: ConchError) -> HttpRefusal:
    """Return the answer to a request that is refused with an error."""
    return HttpRefusal(refusal_of(error).status, error.message, JSON + retry_after(error), replies.error(error))


def _form(call: _Call, admitted: AdmittedCall, _echoed: str, *, chat: bool) -> GenerationForm:
    return replies.OllamaForm(call.model, admitted.timeline.received, chat=chat)


_CHAT: Dialect[_Call] = Dialect(
    job="ollama_chat",
    read=read_chat,
    join=lambda outcome: join_chat(outcome.meta, outcome.parts),
    form=partial(_form, chat=True),
    refusal=refusal,
    whole_calls=True,
)
_GENERATE: Dialect[_Call] = Dialect(
    job="ollama_generate",
    read=read_generate,
    join=lambda outcome: join_generate(outcome.parts),
    form=partial(_form, chat=False),
    refusal=refusal,
)


_EMBED = embedding_dialect(read_embed, "ollama_embed", refusal=refusal)
_EMBEDDINGS = embedding_dialect(read_embeddings, "ollama_embedding", "completion", refusal)


class OllamaApi:
    """Handlers of the paths."""

    def __init__(self, parts: Parts, models: OpenAiModels, generations: Generations) -> None:
        self._models = models
        self._generations = generations
        self._inference = parts.inference
        self.chat = self._reader(parts, _CHAT, chat=True)
        self.generate = self._reader(parts, _GENERATE, chat=False)
        self.embed = text_endpoint(parts, _EMBED)
        self.embeddings = text_endpoint(parts, _EMBEDDINGS)

    def _reader(self, parts: Parts, dialect: Dialect[_Call], *, chat: bool) -> CallReader[_Call]:
        return CallReader(parts, dialect, partial(self._begin, dialect, chat))

    def _begin(
        self,
        dialect: Dialect[_Call],
        chat: bool,
        request: HttpRequest,
        reply: HttpReply,
        call: _Call,
        timeline: Timeline,
    ) -> None:
        """Generate, or without a prompt answer that the model is loaded. Raises ConchError."""
        if isinstance(call, ChatCall):
            model, _ = self._models.find(call.model)
            if not call.messages:
                reply.send(200, JSON, replies.loaded(call.model, chat=chat))
                return
            if call.template_arguments.get("enable_thinking") and not has_reasoning(model.engine.info.chat_template):
                raise InvalidRequest(f'"{call.model}" does not support thinking')
        self._generations.begin(dialect, request, reply, call, timeline)

    def running(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer as clients check for a server."""
        reply.send(200, _TEXT, b"Ollama is running")

    def version(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the version of the API."""
        reply.send(200, JSON, orjson.dumps({"version": _VERSION}))

    def tags(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the models."""
        entries = [{**self._described(entry), "name": _tagged(entry.name)} for entry in self._models.entries()]
        reply.send(200, JSON, orjson.dumps({"models": entries}))

    def ps(self, _request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the models, all of which are loaded; they do not expire."""
        models = [
            {
                **self._described(entry),
                "name": _tagged(entry.name),
                "size_vram": 0,
                "expires_at": "9999-12-31T23:59:59Z",
                "context_length": entry.max_model_len or 0,
            }
            for entry in self._models.entries()
        ]
        reply.send(200, JSON, orjson.dumps({"models": models}))

    def show(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with what is known of a model. Raises ConchError."""
        entry = self._entry(read_model(request.body))
        model = self._inference.model(entry.root or entry.name, None)
        template, family, capabilities = "", model.config.backend, ["embedding"]
        if isinstance(model, GenerativeModel):
            template = model.engine.info.chat_template
            capabilities = [
                "completion",
                *(["tools"] if template else []),
                *(["thinking"] if has_reasoning(template) else []),
                *(["vision"] if model.engine.info.image_placeholders else []),
            ]
        information: dict[str, Any] = {"general.architecture": family, "general.basename": entry.root}
        if entry.max_model_len:
            information[f"{family}.context_length"] = entry.max_model_len
        document = {
            **self._described(entry),
            "license": "",
            "modelfile": f"# {_tagged(entry.name)} comes from the model repository\n",
            "parameters": "",
            "template": template,
            "model_info": information,
            "capabilities": capabilities,
        }
        reply.send(200, JSON, orjson.dumps(document))

    def pull(self, request: HttpRequest, reply: HttpReply) -> None:
        """Confirm a pull of a model that is served already, as programs send at their start. Raises ConchError."""
        name = read_model(request.body)
        if name not in {entry.name for entry in self._models.entries()}:
            raise Unsupported(f"cannot pull '{name}': {_REASONS['pull']}")
        reply.send(200, JSON, orjson.dumps({"status": "success"}) + b"\n")

    def refuse(self, request: HttpRequest, _reply: HttpReply, _name: str = "") -> None:
        """Refuse a change of the models. Raises Unsupported."""
        action = request.path.split("/")[2]
        raise Unsupported(f"/api/{action} is not supported: {_REASONS[action]}")

    def _entry(self, name: str) -> ModelEntry:
        for entry in self._models.entries():
            if entry.name == name:
                return entry
        model, adapter = self._models.find(name)  # raises the error that says why it is missing
        return ModelEntry(name, 0, root=model.config.name, parent=adapter)

    def _described(self, entry: ModelEntry) -> dict[str, Any]:
        backend = self._inference.model(entry.root or entry.name, None).config.backend
        return {
            "model": _tagged(entry.name),
            "modified_at": replies.timestamp(entry.created * 10**9),
            "size": 0,  # of files in repositories that may be remote
            "digest": sha256(entry.name.encode()).hexdigest(),
            "details": {
                "parent_model": entry.parent or "",
                "format": backend,
                "family": backend,
                "families": [backend],
                "parameter_size": "",
                "quantization_level": "",
            },
        }


def _tagged(name: str) -> str:
    """Return the name of a model with the tag that Ollama shows."""
    return name if ":" in name else f"{name}:latest"
