"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`, vLLM's: LoRA adapters from the folder `--lora-dir`."""

import asyncio
import re
from pathlib import Path

from conch.base.errors import InvalidRequest, Unavailable, Unsupported
from conch.protocols.http.long_replies import ReplyTasks
from conch.protocols.http.message import HttpRequest, content_type
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.fields import Fields, ObjectNotFound, read_object
from conch.server.core.generative_model import GenerativeModel
from conch.server.frontends.openai.errors import send_error
from conch.server.frontends.openai.models import OpenAiModels
from conch.server.frontends.parts import Parts

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MAX_ADAPTERS = 256  # of a model
_TEXT = content_type(b"text/plain; charset=utf-8")


class AdaptersApi:
    """Handlers of the paths."""

    def __init__(self, parts: Parts, models: OpenAiModels) -> None:
        self._folder = parts.options.lora_dir
        self._inference = parts.inference
        self._models = models
        self._tasks = ReplyTasks(send_error)
        self._changing: set[tuple[str, str]] = set()  # models and their adapters that are loaded or unloaded now

    def load(self, request: HttpRequest, reply: HttpReply) -> None:
        """Load an adapter. Raises ConchError."""
        fields, name, model = self._read(request)
        if not self._folder:
            raise Unsupported("the server loads no LoRA adapters: start it with --lora-dir")
        path, again = fields.required_text("lora_path"), fields.boolean("load_inplace")
        if not _NAME.fullmatch(name):
            raise fields.wrong("lora_name", "'lora_name' must have up to 128 letters, digits, '.', '_' or '-'")
        if name in {served.config.name for served in self._inference.models()}:
            raise fields.wrong("lora_name", f"'lora_name' must differ from the names of models, got '{name}'")
        known = model.engine.info.adapters
        if len(known) + sum(changing == model.config.name for changing, _ in self._changing) >= _MAX_ADAPTERS:
            raise InvalidRequest(f"model '{model.config.name}' has {_MAX_ADAPTERS} adapters, which is the maximum")
        if name in known and not (again and name in model.engine.loaded_adapters):
            raise InvalidRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True."
            )
        self._begin(reply, model, name, path or ".")

    def unload(self, request: HttpRequest, reply: HttpReply) -> None:
        """Unload an adapter that was loaded by `load`. Raises ConchError."""
        _, name, model = self._read(request)
        if name not in model.engine.loaded_adapters:
            listed = " It is listed in multi_lora.json." if name in model.engine.info.adapters else ""
            text = f"The lora adapter '{name[:128]}' cannot be found among those loaded at run time.{listed}"
            raise ObjectNotFound(text)
        self._begin(reply, model, name, "")

    def _read(self, request: HttpRequest) -> tuple[Fields, str, GenerativeModel]:
        """Return the fields, the adapter's name and its model, which is the only one if the client names none."""
        fields = Fields(read_object(request.body))
        name, model = fields.required_text("lora_name"), fields.text("model")
        base, _ = self._models.find(model) if model else self._models.only()
        return fields, name, base

    def _begin(self, reply: HttpReply, model: GenerativeModel, name: str, path: str) -> None:
        """Load an adapter, or unload it if `path` is "". Raises Unavailable while it changes."""
        changing = (model.config.name, name)
        if changing in self._changing:
            raise Unavailable(f"the lora adapter '{name}' is being loaded or unloaded", retry_after_s=1.0)
        self._changing.add(changing)
        self._tasks.run(reply, self._change(reply, model, name, path))

    async def _change(self, reply: HttpReply, model: GenerativeModel, name: str, path: str) -> None:
        try:
            folder = str(await asyncio.to_thread(_inside, Path(self._folder), path)) if path else ""
            await model.engine.set_adapter(name, folder)
        finally:
            self._changing.discard((model.config.name, name))
        done = "added" if path else "removed"
        reply.send(200, _TEXT, f"Success: LoRA adapter '{name}' {done} successfully.".encode())


def _inside(root: Path, path: str) -> Path:
    """Return a folder below `root`, with symbolic links followed. Raises InvalidRequest, the same for all others."""
    try:
        top = root.resolve(strict=True)
        folder = (top / path).resolve(strict=True)
        if folder != top and folder.is_relative_to(top) and folder.is_dir():
            return folder
    except (OSError, RuntimeError, ValueError):  # missing, a loop, NUL
        pass
    raise InvalidRequest("'lora_path' must be a folder below --lora-dir, or its path within that")
