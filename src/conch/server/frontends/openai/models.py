"""Models of the OpenAI API: list, look up, load and unload.

Triton's OpenAI frontend has the two latter, `POST /v1/models/<name>/load` and `…/unload`; fields are vLLM's.
"""

from collections.abc import Iterator
from types import ModuleType

from conch.base.errors import ConchError, InvalidRequest, ModelLoading, NotFound, Unavailable, Unsupported
from conch.protocols.anthropic import replies as anthropic_replies
from conch.protocols.http.long_replies import ReplyTasks
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai import replies as openai_replies
from conch.protocols.openai.replies import ModelEntry
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.served_model import ServedModel
from conch.server.frontends.openai.errors import JSON, absent, is_messages, send_error
from conch.server.frontends.openai.texts import serves_texts
from conch.server.frontends.parts import Parts


class OpenAiModels:
    """Models by the names that clients use: a model's own, or with that of one of its LoRA adapters.

    `--lora-separator` stands between the two; `created`, in seconds of the epoch, is reported for every model.
    """

    def __init__(self, parts: Parts, created: int) -> None:
        self._inference = parts.inference
        self._control = parts.control
        self._separator = parts.options.lora_separator
        self._created = created
        self._lists = parts.models_are_public
        self._tasks = ReplyTasks(send_error)

    def find(self, name: str) -> tuple[GenerativeModel, str]:
        """Return the model that a client has named, and the adapter. Raises NotFound, Unavailable, Unsupported."""
        self._inference.check_accepting()
        model, adapter = self._named(name)
        if not isinstance(model, GenerativeModel):
            path = "/v1/embeddings" if serves_texts(model) else f"/v2/models/{name}/infer"
            raise Unsupported(f"The model `{name}` does not generate text; it is served by {path}.")
        if adapter and adapter not in model.engine.info.adapters:
            raise NotFound(f"The model `{name}` does not exist: `{model.config.name}` has no adapter '{adapter}'.")
        return model, adapter

    def _named(self, name: str) -> tuple[ServedModel, str]:
        """Return the served model of a name, and the adapter. Raises NotFound, Unavailable."""
        try:
            return self._inference.model(name, None), ""
        except (NotFound, Unavailable) as error:
            base, _, adapter = name.partition(self._separator)
            owners = [model for model in self._inference.models() if _has_adapter(model, name)]
            if len(owners) == 1:  # as clients of vLLM name adapters
                return owners[0], name
            if not adapter or isinstance(error, Unavailable):
                raise self._absent(name, error) from None
        try:
            return self._inference.model(base, None), adapter
        except (NotFound, Unavailable) as error:
            raise self._absent(base if isinstance(error, Unavailable) else name, error) from None

    def _absent(self, name: str, error: ConchError) -> ConchError:
        return absent(self._inference, name, error, (entry.name for entry in self.entries()) if self._lists else ())

    def only(self) -> tuple[GenerativeModel, str]:
        """Return the model that generates, where a client need not name it. Raises InvalidRequest, Unavailable."""
        names = [model.config.name for model in self._inference.models() if isinstance(model, GenerativeModel)]
        if len(names) == 1:
            return self.find(names[0])
        loading = self._inference.loading()
        if not names and loading is not None:
            what = ", ".join(loading) or "the repository"
            raise ModelLoading(f"no model that generates is ready; loading: {what}", retry_after_s=1.0)
        listed = ", ".join(sorted(names)) or "no model that generates"
        raise InvalidRequest(f"you must provide a 'model' parameter: the server has {listed}")

    def list_all(self, request: HttpRequest, reply: HttpReply) -> None:
        """Answer with the models, in the form of the client's API."""
        encode = _replies(request).models
        if request.headers.get(b"originator", b"").startswith(b"codex"):
            encode = openai_replies.codex_catalogue
        reply.send(200, JSON, encode(self.entries(), self._inference.loading()))

    def show(self, request: HttpRequest, reply: HttpReply, name: str) -> None:
        """Answer with one model, in the form of the client's API. Raises ConchError."""
        reply.send(200, JSON, _replies(request).model(self._entry(*self._shown(name))))

    def load(self, _request: HttpRequest, reply: HttpReply, name: str) -> None:
        """Load a model; answered when it is ready. Raises InvalidRequest."""
        self._require_explicit()
        self._tasks.run(reply, self._load(name, reply))

    def unload(self, _request: HttpRequest, reply: HttpReply, name: str) -> None:
        """Unload a model. Raises InvalidRequest."""
        self._require_explicit()
        self._tasks.run(reply, self._unload(name, reply))

    async def _load(self, name: str, reply: HttpReply) -> None:
        if self._served(name) is not None:
            raise InvalidRequest(f"Model `{name}` is already loaded; /v2/repository/models/{name}/load reloads it.")
        try:
            await self._control.load(name, None, {})
        except NotFound as error:  # whose code is Triton's
            raise NotFound(error.message) from error
        reply.send(200, JSON, openai_replies.model(self._entry(self._inference.model(name, None), "")))

    async def _unload(self, name: str, reply: HttpReply) -> None:
        """Unload a model; answered when all that it had admitted has been answered and its memory is free."""
        if self._served(name) is None:
            raise InvalidRequest(f"Unknown model `{name}`: it is not loaded.")
        await self._control.unload(name, unload_dependents=False)
        await self._control.retired(name)
        reply.send(200, JSON, openai_replies.unloaded(name))

    def _shown(self, name: str) -> tuple[ServedModel, str]:
        """Return a model that is listed, and the adapter. Raises NotFound, Unavailable, Unsupported."""
        model = self._served(name)
        return (model, "") if model is not None and serves_texts(model) else self.find(name)

    def _served(self, name: str) -> ServedModel | None:
        try:
            return self._inference.model(name, None)
        except (NotFound, Unavailable):
            return None

    def _require_explicit(self) -> None:
        if not self._control.explicit:
            raise InvalidRequest("Model load/unload requires --model-control-mode=explicit")

    def entries(self) -> list[ModelEntry]:
        """Return the models that generate, their adapters, and the models that make embeddings, by name."""
        entries: dict[str, ModelEntry] = {}
        for model in self._inference.models():
            if isinstance(model, GenerativeModel) and model.ready:
                entries.update((entry.name, entry) for entry in self._with_adapters(model))
            elif model.ready and serves_texts(model):
                entries[model.config.name] = self._entry(model, "")
        return [entries[name] for name in sorted(entries)]

    def _with_adapters(self, model: GenerativeModel) -> Iterator[ModelEntry]:
        for adapter in ("", *model.engine.info.adapters):
            yield self._entry(model, adapter)

    def _entry(self, model: ServedModel, adapter: str) -> ModelEntry:
        base, info = model.config.name, model.engine.info if isinstance(model, GenerativeModel) else None
        return ModelEntry(
            f"{base}{self._separator}{adapter}" if adapter else base,
            self._created,
            root=base,
            parent=base if adapter else None,
            max_model_len=info.context_length if info else None,
            chat_template=info.chat_template if info else None,
        )


def _replies(request: HttpRequest) -> ModuleType:
    return anthropic_replies if is_messages(request) else openai_replies


def _has_adapter(model: ServedModel, name: str) -> bool:
    return isinstance(model, GenerativeModel) and model.ready and name in model.engine.info.adapters
