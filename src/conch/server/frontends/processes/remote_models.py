# Compiled by mypyc in wheels.
"""Models as a frontend process sees them: they send each request to the core, and pass its responses on.

`Inference`, `GenerativeModel` and the endpoints are those of a server without frontend processes. What differs is what
the catalog holds: a `RemoteModel` in the place of one with a queue, a `RemoteEngine` in that of an engine.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from conch.base.errors import Cancelled, ConchError, LimitExceeded, QueueFull, Unavailable
from conch.domain.events.rows import ExchangeRow, Ring, Row
from conch.domain.generation import Delta, DeltaCallback, FinishableGeneration, FinishReason, GenerationRequest, Usage
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, InferResponse, Respond, Timeline, TokenMeter, tenant_of
from conch.domain.scheduling.waiting import State
from conch.server.backends.engines.base import Engine
from conch.server.core.catalog import Catalog
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.pending import Pending
from conch.server.core.served_model import ServedModel
from conch.server.frontends.processes.link import (
    CANCEL,
    EXCHANGE,
    FINISH,
    GENERATE,
    INFER,
    LIMITED,
    FrontendLink,
    Message,
    Placed,
    decode_answer,
    times_of,
)
from conch.server.frontends.processes.values import describe_error, of_plain, restored_error, to_plain

Subject: TypeAlias = tuple[str, int, str]  # model, version and tenant

_MAX_SUBJECTS: Final = 1000
_MAX_HELD_NS: Final = 1_000_000_000
CORE_LOST: Final = "the server is stopping or has failed; try again"
_REASONS: Final = {reason.value: reason for reason in FinishReason}


class Calls:
    """The requests that the core has not answered, by their numbers. Belongs to the event loop's thread."""

    def __init__(self, link: FrontendLink) -> None:
        self.link = link
        self.refusals = Refusals(link)
        self._last = 0
        self._pending: dict[int, Pending] = {}
        self._generations: dict[int, RemoteGeneration] = {}

    def __len__(self) -> int:
        return len(self._pending) + len(self._generations)

    def number(self) -> int:
        """Return a number for a further request or call."""
        self._last += 1
        return self._last

    def infer(self, pending: Pending) -> None:
        """Send a request."""
        number = self.number()
        self._pending[number] = pending
        pending.on_cancel(partial(self._cancel, number))
        request = pending.request
        link = self.link
        inputs = [
            (tensor.name, tensor.datatype, tensor.shape, link.packed(tensor.data))
            if tensor.source is None
            else (tensor.name, tensor.datatype, tensor.shape, place_of(tensor.source))
            for tensor in request.inputs
        ]
        destinations = request.destinations
        link.send(
            (
                INFER,
                number,
                request.model_name,
                request.version,
                request.id,
                inputs,
                request.outputs,
                request.parameters,
                request.correlation_id,
                request.flags,
                request.priority,
                request.timeout_us,
                times_of(request.timeline),
                tenant_of(request.meter),
                context_of(request.span),
                None
                if destinations is None
                else {name: place_of(destination) for name, destination in destinations.items()},
            )
        )

    def answered(self, message: Message) -> None:
        """Pass on a response; no-op for a request that was cancelled."""
        _, number, final, encoded = message
        answer = decode_answer(self.link, encoded)
        if final:
            pending = self._pending.pop(number, None)
            if pending is not None:
                pending.finish(answer)
            return
        pending = self._pending.get(number)
        if pending is not None and answer is not None:
            pending.send(answer)

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback, version: int = 0) -> "RemoteGeneration":
        """Send a request for text; `version` is that of the model."""
        number = self.number()
        subject = (request.model_name, version, tenant_of(request.meter))
        received = request.timeline.received
        generation = self._generations[number] = RemoteGeneration(self, number, on_deltas, subject, received)
        prompt = request.prompt
        self.link.send(
            (
                GENERATE,
                number,
                request.model_name,
                request.version,
                request.id,
                prompt if isinstance(prompt, str) else list(prompt),
                to_plain(request.params),
                request.adapter,
                request.priority,
                request.add_special_tokens,
                request.return_prompt,
                request.prompt_only,
                [(*image[:-1], self.link.packed(image.data)) for image in request.images],
                times_of(request.timeline),
                tenant_of(request.meter),
                context_of(request.span),
                request.client,
            )
        )
        return generation

    def generated(self, message: Message) -> None:
        """Pass on deltas, and the end; no-op for a generation that was aborted."""
        _, number, encoded, end = message
        ended = end_of(end)
        generation = self._generations.get(number)
        if ended is not None and generation is not None:
            del self._generations[number]
            if isinstance(ended, LimitExceeded):
                self.refusals.note(generation.subject, ended, generation.received)
        if generation is not None:
            generation.deliver([delta_of(delta) for delta in encoded], ended)

    def abort(self, number: int) -> None:
        """End a generation: the core need not answer."""
        generation = self._generations.pop(number, None)
        if generation is not None:
            self.link.send((CANCEL, number))
            generation.deliver((), Cancelled("request was cancelled by the client"))

    def fail(self) -> None:
        """End everything: the core has ended."""
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.finish(Unavailable(CORE_LOST))
        generations, self._generations = self._generations, {}
        for generation in generations.values():
            generation.deliver((), Unavailable(CORE_LOST))

    def _cancel(self, number: int) -> None:
        if self._pending.pop(number, None) is not None:
            self.link.send((CANCEL, number))


class RemoteGeneration:
    """A request that the core's engine executes."""

    __slots__ = ("_calls", "_number", "deliver", "received", "subject")

    def __init__(self, calls: Calls, number: int, on_deltas: DeltaCallback, subject: Subject, received: int) -> None:
        self._calls = calls
        self._number = number
        self.subject = subject
        self.received = received
        self.deliver = on_deltas

    def abort(self) -> None:
        """End the request with Cancelled, if it has not ended."""
        self._calls.abort(self._number)

    def finish(self) -> None:
        """End the request with what it has generated, which the core sends."""
        self._calls.link.send((FINISH, self._number))


class RemoteModel(ServedModel):
    """A model of the core."""

    def __init__(self, config: ModelConfig, version: int, labels: Mapping[str, Sequence[str]], calls: Calls) -> None:
        super().__init__(config, version, labels)
        self._calls = calls

    @property
    def ready(self) -> bool:
        return True

    @property
    def takes_sources(self) -> bool:
        return True

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        pending = Pending(request, respond, self)
        self._calls.infer(pending)
        return pending

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:  # noqa: ARG002
        """Hold a refusal over a limit; the core counts the requests."""
        if isinstance(answer, LimitExceeded):
            request = pending.request
            subject = (self.config.name, self.version, tenant_of(request.meter))
            self._calls.refusals.note(subject, answer, request.timeline.received)

    def refusal(self, now: int, meter: TokenMeter | None = None) -> QueueFull | None:  # noqa: ARG002 - the core refuses
        return None

    def check_room(self, timeline: Timeline, meter: TokenMeter | None = None) -> None:
        """Raise LimitExceeded if the core would; it knows the room, and counts what is refused."""
        self._calls.refusals.check((self.config.name, self.version, tenant_of(meter)), timeline)

    async def start(self) -> None:
        """Do nothing: the core has loaded it."""

    async def stop(self) -> None:
        """Do nothing: the core unloads it."""


class RemoteGenerativeModel(GenerativeModel):
    """A language model of the core, which orders and bounds its requests."""

    def __init__(
        self, config: ModelConfig, version: int, labels: Mapping[str, Sequence[str]], engine: Engine, calls: Calls
    ) -> None:
        super().__init__(config, version, labels, engine)
        self._calls = calls

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> FinishableGeneration:
        return self._calls.generate(request, on_deltas, self.version)

    def check_room(self, timeline: Timeline, meter: TokenMeter | None = None) -> None:
        """Raise LimitExceeded if the core would; it knows the room."""
        self._calls.refusals.check((self.config.name, self.version, tenant_of(meter)), timeline)


class MirroredCatalog(Catalog):
    """The catalog of a frontend process. A model that the core has not published is the core's to refuse."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def knows(self, name: str, version: int | None) -> bool:
        """Whether the core has published a model version."""
        try:
            super().find(name, version)
        except ConchError:
            return False
        return True

    def find(self, name: str, version: int | None) -> ServedModel:
        try:
            return super().find(name, version)
        except ConchError:
            return RemoteModel(ModelConfig(name, "", "", 0, (), ()), version or 0, {}, self._calls)


class ForwardedContext:
    """The span of a request whose trace the core records: what the core needs to begin it.

    It is the `Span` of a request, without effect here.
    """

    __slots__ = ("parent", "protocol", "state")

    def __init__(self, protocol: str, parent: str, state: str) -> None:
        self.protocol = protocol
        self.parent = parent
        self.state = state

    @property
    def context(self) -> str:
        """No context: the model is in the core."""
        return ""

    @property
    def trace_id(self) -> str:
        """No exemplars: the core has the metrics."""
        return ""

    @property
    def notes_tensors(self) -> bool:
        """Whether it records the bytes of tensors."""
        return False

    def child(self, request: InferRequest, version: int) -> None:
        """Do nothing."""

    def hit(self) -> None:
        """Do nothing."""

    def executed(self, requests: int) -> None:
        """Do nothing."""

    def responded(self, response: InferResponse) -> None:
        """Do nothing."""

    def generated(self, timeline: Timeline, prompt_tokens: int, completion_tokens: int) -> None:
        """Do nothing."""

    def settled(
        self, request: InferRequest, answer: InferResponse | ConchError | None, failure: ConchError | None = None
    ) -> None:
        """Do nothing: the core has ended it."""


class RemoteExchanges(Ring):
    """Sends the rows of clients' calls to the core, whose event log is the only one."""

    def __init__(self, link: FrontendLink) -> None:
        super().__init__(0)
        self._link = link

    def add(self, row: Row) -> bool:
        assert isinstance(row, ExchangeRow)
        sizes = (int(row.status), row.bytes_in, row.bytes_out)
        times = (row.first_byte, row.received, row.body_done, row.encoded, row.written, row.drained)
        self._link.send((EXCHANGE, row.number, row.protocol, row.id, *sizes, *times))
        return False


def exchange_of(message: Message) -> ExchangeRow:
    """Return the row that was sent. Reading the log adds what the request knows."""
    row = ExchangeRow(message[1], message[2], message[8])
    row.id, row.status, row.bytes_in, row.bytes_out = message[3], message[4], message[5], message[6]
    row.first_byte, row.body_done, row.encoded, row.written, row.drained = (
        message[7],
        message[9],
        message[10],
        message[11],
        message[12],
    )
    return row


def context_of(span: object) -> tuple[str, str, str] | None:
    """Return the trace context of a request as it travels."""
    return (span.protocol, span.parent, span.state) if isinstance(span, ForwardedContext) else None


def place_of(source: object) -> tuple[str, int, int]:
    """Return a range of a region as it travels."""
    assert isinstance(source, Placed)
    return (source.region, source.offset, source.size)


def delta_to_plain(delta: Delta) -> tuple[Any, ...]:
    """Return a delta as it travels."""
    reason, given = delta.finish_reason, delta.token_ids
    token_ids = given if type(given) is list else list(given)
    if reason is None and not delta.logprobs and delta.prompt is None:
        return (delta.index, delta.text, token_ids)
    return (
        delta.index,
        delta.text,
        token_ids,
        None if reason is None else reason.value,
        delta.stop_reason,
        to_plain(delta.logprobs),
        to_plain(delta.prompt),
    )


def delta_of(plain: tuple[Any, ...]) -> Delta:
    """Return the delta that was sent."""
    if len(plain) == 3:
        return Delta(plain[0], plain[1], plain[2])
    index, text, token_ids, reason, stop_reason, logprobs, prompt = plain
    return Delta(
        index,
        text,
        token_ids,
        None if reason is None else _REASONS[reason],
        stop_reason,
        of_plain(logprobs),
        of_plain(prompt),
    )


def end_to_plain(end: Usage | ConchError | None) -> Any:
    """Return the end of a generation as it travels."""
    if end is None:
        return None
    return [describe_error(end)] if isinstance(end, ConchError) else to_plain(end)


def end_of(plain: Any) -> Usage | ConchError | None:
    """Return the end that was sent."""
    if plain is None:
        return None
    if type(plain) is list:
        return restored_error(plain[0])
    usage: Usage = of_plain(plain)
    return usage


class Refusals:
    """What the core has refused for exceeding a limit, by subject: repeated until a retry may be admitted.

    So a flood over a limit costs no decoding, and the core a count instead of a request.
    """

    def __init__(self, link: FrontendLink) -> None:
        self._link = link
        # From when a retry may be admitted, until when the core need not be asked (monotonic ns), message, quantity.
        self._held: dict[Subject, tuple[int, int, str, str]] = {}

    def note(self, subject: Subject, error: LimitExceeded, received: int) -> None:
        """Hold a refusal of a request that was received at a time (monotonic ns)."""
        if len(self._held) >= _MAX_SUBJECTS:
            self._held.clear()
        retry = received + int((error.retry_after_s or 0.0) * 1e9)
        self._held[subject] = (retry, min(retry, received + _MAX_HELD_NS), error.message, error.quantity)

    def check(self, subject: Subject, timeline: Timeline) -> None:
        """Raise LimitExceeded if the core would refuse a request, which it counts then."""
        held = self._held.get(subject)
        if held is None:
            return
        retry, until, message, quantity = held
        received = timeline.received
        if received >= until:
            del self._held[subject]
            return
        self._link.send((LIMITED, *subject, times_of(timeline)))
        raise LimitExceeded(message, retry_after_s=(retry - received) / 1e9, quantity=quantity)

    def clear(self) -> None:
        """Forget all: limits have changed."""
        self._held.clear()
