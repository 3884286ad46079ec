"""Business logic scripting (BLS): calls from a model to other models, and model control from a model.

A backend whose models may call others is made with a `ModelCalls`, which the core implements: a call is validated,
queued, batched and counted like any request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from conch.domain.request import InferRequest, Respond, Span
from conch.server.backends.base import Instance, ModelSource
from conch.server.backends.batch import Execution


@dataclass(frozen=True, slots=True, eq=False)
class BlsCaller:
    """The model that makes a call, and the requests for which it does.

    `holds` is the instance that is blocked until the call is answered; None if it continues meanwhile. `span` is the
    parent of the call's span, if the call is traced.
    """

    model: str
    namespace: str  # of the model
    executions: Sequence[Execution]
    holds: Instance | None
    span: Span | None = None


class BlsCall(Protocol):
    """A call in flight. Both methods are no-ops after its answer."""

    def cancel(self) -> None:
        """End the call with the error CANCELLED."""

    def release_instance(self) -> None:
        """Release the caller's instance, which the call no longer blocks."""


class ModelCalls(Protocol):
    """The server's interface for its models. All methods belong to the event loop's thread."""

    def call(self, caller: BlsCaller, request: InferRequest, respond: Respond, *, many: bool) -> BlsCall:
        """Call a model; `respond` receives its responses and, once, its end, perhaps before this returns.

        `many` allows any number of responses. Raises a ConchError if the request is refused.
        """

    async def load(self, name: str, config: str, files: Mapping[str, bytes], waiting: ModelSource | None) -> None:
        """Load or reload a model; `waiting` is the model whose own load waits for that.

        `config` (JSON, "" for none) and `files` ("<version>/<path>" → contents) replace those in the repository.
        Raises a ConchError with the cause.
        """

    async def unload(self, name: str, unload_dependents: bool, waiting: ModelSource | None) -> None:
        """Unload a model; `waiting` as for `load`. Raises a ConchError with the cause."""

    async def ready(self, name: str, version: str, namespace: str) -> bool:
        """Return whether a model is ready; `version` "" for the newest. `namespace` is that of the calling model."""
