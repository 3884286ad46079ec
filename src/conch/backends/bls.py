"""What a model may ask of the server that runs it: answers of other models, and their coming and going.

Triton's business logic scripting (BLS). A backend that lets its models call is made with a `ModelCalls`; the core is
behind it, so a call is validated, queued, batched and counted as any request is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from conch.backends.base import Instance, ModelSource
from conch.backends.batch import Execution
from conch.request import InferRequest, Respond, Span


@dataclass(frozen=True, slots=True, eq=False)
class BlsCaller:
    """Who makes a call, and for which of the requests in its hands.

    `holds` is the instance that does nothing else before the call is answered; None where it goes on meanwhile. `span`
    is where the call is to be noted, if the model wants that.
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
        """Note that the caller's instance is not blocked by the call any more."""


class ModelCalls(Protocol):
    """The server as its models see it. All methods belong to the event loop's thread."""

    def call(self, caller: BlsCaller, request: InferRequest, respond: Respond, *, many: bool) -> BlsCall:
        """Put a request; `respond` hears of its responses and, once, of its end, perhaps before this returns.

        `many` says that any number of responses will do. Raises a ConchError if the request is refused.
        """

    async def load(self, name: str, config: str, files: Mapping[str, bytes], waiting: ModelSource | None) -> None:
        """Load or reload a model; `waiting` is the model whose own load waits for that.

        `config` (JSON, "" for none) and `files` ("<version>/<path>" → contents) replace what lies in the repository.
        Raises a ConchError with the cause.
        """

    async def unload(self, name: str, unload_dependents: bool, waiting: ModelSource | None) -> None:
        """Take a model out of service; `waiting` as for `load`. Raises a ConchError with the cause."""

    async def ready(self, name: str, version: str, namespace: str) -> bool:
        """Whether a model is ready; `version` "" for the newest. `namespace` is that of the model that asks."""
