# Compiled by mypyc in wheels.
"""A generative model version: admission, statistics, and the engine that executes its requests.

An engine batches continuously and is given every request that helps it: `domain.scheduling.prompt_queue` decides which
wait here. The bound is on the requests beyond those that it computes concurrently.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import monotonic_ns
from typing import Final

from conch.base.errors import (
    Cancelled,
    ConchError,
    DeadlineMissed,
    InvalidRequest,
    QueueFull,
    Unavailable,
    Unsupported,
)
from conch.domain.events.rows import Row
from conch.domain.generation import (
    Delta,
    DeltaCallback,
    FinishableGeneration,
    FinishReason,
    Generation,
    GenerationRequest,
    Usage,
)
from conch.domain.llm.tensor_form import TensorForm
from conch.domain.model_config import ModelConfig, QueuePolicy
from conch.domain.request import InferRequest, InferResponse, Respond, TokenMeter
from conch.domain.scheduling.estimate import ServiceTimes
from conch.domain.scheduling.prompt_queue import PromptQueue, PromptRate
from conch.domain.scheduling.queue import ServiceRate
from conch.domain.scheduling.waiting import State, Waiting
from conch.domain.statistics.generation_statistics import GenerationStatistics
from conch.domain.statistics.model_statistics import ModelState
from conch.server.backends.base import Worker
from conch.server.backends.engines.base import Engine
from conch.server.core.pending import Pending
from conch.server.core.served_model import ServedModel, missed_deadline
from conch.server.observability.event_log import StepRow

# Characters of the longest token of common vocabularies: 128 spaces.
_MAX_TOKEN_CHARS: Final = 128
# Characters or tokens of a prompt, whatever the context: messages to engines are bounded.
_MAX_PROMPT_LENGTH: Final = 12 * 2**20
_CHARACTERS_PER_TOKEN: Final = 4  # about
_PIXELS_PER_TOKEN: Final = 28 * 28  # of an image, about
MAX_WAITING_IMAGE_BYTES: Final = 2**30  # encoded, of requests that have not begun
# Parameters that clients know by another name, and what serves instead.
_UNSUPPORTED: Final = {
    "structured": "structured output (response formats, required tool calls): describe the form in the prompt, and "
    "let the model choose tools ('auto')"
}


class GenerativeModel(ServedModel):
    """A model version with an engine. Requests arrive as prompts, by `generate`, or as tensors, by `submit`."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        engine: Engine,
        *,
        max_queue_size: int = 0,
    ) -> None:
        """Create the model. `max_queue_size` bounds the queue where the configuration does not; 0 is unbounded."""
        super().__init__(config, version, labels)
        self.engine = engine
        self.stats = GenerationStatistics(config.name, version, lambda: engine.load, lambda: engine.info)
        self.statistics.generation = self.stats
        self.stats.adapters = self._adapters_in_use
        policy = config.dynamic_batching.default_queue_policy if config.dynamic_batching else QueuePolicy()
        self._max_queue_size = policy.max_queue_size or max_queue_size
        self._held = 0  # sequences of all requests
        self._given = 0  # sequences of the requests that the engine holds
        self._prompts: PromptQueue[LiveGeneration] = PromptQueue()
        self._rate = PromptRate()
        self._times = ServiceTimes()  # from the first token to the end
        self._giving = False
        self._service_rate = ServiceRate()
        self._live: set[LiveGeneration] = set()
        self._preemptions = 0  # as of the last step
        self._busy_ns = 0  # time in which requests were in the engine; while there are some, less the time of the first

    def __repr__(self) -> str:
        return f"<GenerativeModel {self.config.name}/{self.version} {len(self._live)} live>"

    @property
    def ready(self) -> bool:
        return self.engine.ready

    @property
    def workers(self) -> Sequence[Worker]:
        return [self.engine]

    def state(self) -> ModelState:
        waiting = [live.request.timeline.received for live in self._live if not live.request.timeline.started]
        engine = self.engine
        return ModelState(
            engine.ready,
            1,
            len(waiting),
            min(waiting, default=0),
            self._busy_ns + (monotonic_ns() if self._live else 0),
            engine.restarts,
            (("engine", engine.pid),) if engine.pid else (),
            int(engine.ready),
        )

    def _adapters_in_use(self) -> tuple[list[str], list[str]]:
        """Return the names of the LoRA adapters of running requests, and of those that only waiting ones have."""
        running = {live.request.adapter for live in self._live if live.request.timeline.started}
        waiting = {live.request.adapter for live in self._live} - running
        return sorted(running - {""}), sorted(waiting - {""})

    async def start(self) -> None:
        started = monotonic_ns()
        self.engine.on_ready_change = self._ready_changed
        if self.events.on:
            self.engine.load.on_step = self._log_step
        await self.engine.start()
        self.log_workers()
        self._prompts.set_context(self.engine.info.context_length)
        self.statistics.load_duration_s = (monotonic_ns() - started) / 1e9

    def _ready_changed(self) -> None:
        self.log_workers()
        self._give_next()

    def generate(self, request: GenerationRequest, on_deltas: DeltaCallback) -> FinishableGeneration:
        """Admit a request. Raises InvalidRequest, Unsupported, QueueFull, DeadlineMissed, Unavailable.

        `on_deltas` is called exactly once with the end of an admitted request.
        """
        request.params.check()
        self._check_supported(request)
        self._check_length(request)
        if request.images:
            self._check_images(request)
        self.refuse_when_full(request.timeline, request.meter)
        if request.span is not None:
            request.timeline.queued = request.timeline.queued or monotonic_ns()
        if self.events.on:
            request.number = self.events.recorder.number()
        live = LiveGeneration(self, request, on_deltas)
        timeline = request.timeline
        if timeline.deadline or timeline.first_token_by:
            self._check_deadlines(live)
        evicted = None
        if self._is_full() and request.meter is not None:
            evicted = self._prompts.evictable(live.tenant, live.weight, live.batch_size)
        if not self._live:
            self._busy_ns -= monotonic_ns()
        self._live.add(live)
        self._held += request.params.n
        self.enter()
        self.statistics.pending += 1
        self._rate.arrived(monotonic_ns())
        if self.statistics.declared is not None:
            self.statistics.declared.begin_prompt(request)
        try:
            if self._waits(live):
                self._prompts.add(live)
            else:
                self._give(live)
        except BaseException:
            self._discard(live)
            self._prompts.done(live)
            self._rate.left(0, monotonic_ns())
            self._held -= request.params.n
            self.leave()
            self.statistics.pending -= 1
            if self.statistics.declared is not None:
                self.statistics.declared.withdraw(request)
            raise
        if evicted is not None:
            evicted.on_deltas((), self._full(timeline.received))
        if timeline.deadline or timeline.first_token_by:
            live.watch_deadlines()
        return live

    def _waits(self, live: "LiveGeneration") -> bool:
        """Whether the engine is given a request later. It orders requests with priorities itself."""
        request = live.request
        if request.prompt_only or request.priority or not self.engine.ready:
            return False
        return not self._prompts.passes(live, room=request.meter is None or self._has_room())

    def _has_room(self) -> bool:
        """Whether the engine holds less than it computes, and what begins when a few sequences end together."""
        running = self.engine.info.max_running
        return self._given < running + max(running // 4, 1)

    def _give(self, live: "LiveGeneration") -> None:
        """Give a request to the engine. Raises ConchError."""
        if not live.request.prompt_only:
            self._prompts.give(live)
        self._given += live.request.params.n
        live.given = True
        try:
            live.generation = self.engine.generate(live.request, live.on_deltas)
        except BaseException:
            self._given -= live.request.params.n
            live.given = False
            raise

    def _give_next(self) -> None:
        """Give the engine requests that wait, as far as it has room."""
        if self._giving or not self._prompts:
            return
        self._giving = True
        try:
            if not self.engine.ready:
                text = f"model '{self.config.name}' is not ready: its engine is being restarted"
                for live in self._prompts.waiting():
                    live.on_deltas((), Unavailable(text, retry_after_s=1.0))
                return
            while self._has_room() and (following := self._prompts.next()) is not None:
                try:
                    needed = 0
                    if following.request.timeline.deadline:
                        needed = self._generation_ns(following.request.params.max_tokens, monotonic_ns())
                    if not following.expired(needed):
                        self._give(following)
                except ConchError as error:
                    following.on_deltas((), error)
        finally:
            self._giving = False

    def _check_deadlines(self, live: "LiveGeneration") -> None:
        """Raise DeadlineMissed if by the estimate the first token or the end would come too late."""
        timeline, now = live.request.timeline, monotonic_ns()
        ns_per_token = self._rate.ns_per_token(now)
        wait, first = int(self._prompts.before(live) * ns_per_token), int(live.batch_size * ns_per_token)
        whole = first + self._generation_ns(live.request.params.max_tokens, now)
        for due, service in ((timeline.first_token_by, first), (timeline.deadline, whole)):
            missed = missed_deadline(self.config.name, timeline, due, now, wait, service) if due else None
            if missed is not None:
                self.refuse_for(missed, timeline)

    def _generation_ns(self, max_tokens: int | None, now: int) -> int:
        """Return about how long a generation takes after its first token: the recent mean, less for few tokens."""
        self._times.update(self.statistics.batches, now)
        mean_ns = self._times.of(1, now)
        tokens = self.stats.generation_tokens / max(self.statistics.success.count, 1)
        return int(mean_ns * min(1.0, (max_tokens or tokens) / max(tokens, 1.0)))

    def begun(self, live: "LiveGeneration", now: int) -> None:
        """Count a request that the engine has begun to answer, and free its images."""
        live.request.images = ()
        self.statistics.pending -= 1
        self._prompts.done(live)
        self._rate.left(live.batch_size, now)
        self._give_next()

    def submit(self, request: InferRequest, respond: Respond) -> Pending:
        """Admit a request in tensor form, as Triton's vLLM backend takes it. Raises as `generate` does."""
        form = TensorForm.of(request, self.version)
        form.request.meter = request.meter
        form.request.parent = request.parent
        pending = Pending(request, respond, self)
        request.timeline.queued = pending.queued = monotonic_ns()
        pending.state = State.EXECUTING
        generation = self.generate(form.request, partial(_respond, pending, form))
        pending.on_cancel(generation.abort)
        return pending

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:
        """Do nothing: the generation is counted, not its tensor form."""

    def refusal(self, now: int, meter: TokenMeter | None = None) -> QueueFull | None:
        if not self._is_full():
            return None
        if meter is not None and self._prompts.evictable(meter.tenant, meter.weight) is not None:
            return None
        return self._full(now)

    def _is_full(self) -> bool:
        return 0 < self._max_queue_size <= self._held - self.engine.info.max_running

    def _full(self, now: int) -> QueueFull:
        running = self.engine.info.max_running
        return QueueFull(
            f"Exceeds maximum queue size: model '{self.config.name}' computes {running} sequences concurrently; "
            f"{self._held - running} wait, the maximum is {self._max_queue_size}",
            retry_after_s=self._service_rate.seconds_for(self._held - running, now) or 1.0,
        )

    async def stop(self) -> None:
        self._giving = True  # nothing more
        for live in list(self._live):
            live.on_deltas((), Unavailable(f"model '{self.config.name}' is being unloaded"))
        await self.engine.stop()

    async def kill(self) -> None:
        await self.engine.kill()

    def ended(self, live: "LiveGeneration", end: Usage | ConchError) -> None:
        """Count a request that has ended. Called once for each that was admitted."""
        self._discard(live)
        self._held -= live.request.params.n
        if live.given:
            self._given -= live.request.params.n
        self._service_rate.taken += live.request.params.n
        self.leave()
        timeline = live.request.timeline
        timeline.done = now = monotonic_ns()
        if not timeline.started:
            self.statistics.pending -= 1
            self._prompts.done(live)
            self._rate.left(0, now)
        if self.events.on:
            failure = end if isinstance(end, ConchError) else None
            tokens = (end.prompt_tokens, end.completion_tokens) if isinstance(end, Usage) else (0, 0)
            self.events.recorder.add("requests", self.events.generated(live.request, failure, tokens))
        if self._prompts:
            self._give_next()
        if timeline.deadline and now > timeline.deadline and not isinstance(end, ConchError):
            self.statistics.deadline_misses["late"] += 1
        if isinstance(end, ConchError):
            self.count_failure(now - timeline.received, end)
            if self.statistics.declared is not None:
                self.statistics.declared.end_prompt(live.request, end)
            return
        first = timeline.started = timeline.input_done = timeline.started or now
        timeline.infer_done = now
        if self.statistics.declared is not None:
            self.statistics.declared.end_prompt(live.request, end)
        if live.request.span is not None:
            live.request.span.generated(timeline, end.prompt_tokens, end.completion_tokens)
        self.statistics.count_success(
            1,
            total=now - timeline.received,
            queue=first - timeline.received,
            compute_input=0,
            compute_infer=now - first,
            compute_output=0,
            span=live.request.span,
        )
        self.statistics.count_execution(1, first, first, now, now)
        if self.statistics.first_response is not None:
            self.statistics.first_response.add(first - timeline.received)

    def unfinished(self) -> Iterable[tuple[str, Row]]:
        return [("requests", self.events.generated(live.request, None, (0, 0))) for live in self._live]

    def _log_step(self, started: int, ended: int, cpu_ns: int, cpu_wait_ns: int, tokens: int) -> None:
        load, row = self.engine.load, StepRow()
        row.model, row.version = self.events.model, self.events.version
        row.started, row.ended, row.cpu_ns, row.cpu_wait_ns = started, ended, cpu_ns, cpu_wait_ns
        row.running, row.waiting = load.running, load.waiting
        row.prefill_tokens, row.decode_tokens = 0, tokens
        row.preemptions = max(load.preemptions - self._preemptions, 0)
        row.cache_used = round(load.kv_cache_usage * 1000)
        self._preemptions = load.preemptions
        self.events.recorder.add("steps", row)

    def _discard(self, live: "LiveGeneration") -> None:
        self._live.discard(live)
        if not self._live:
            self._busy_ns += monotonic_ns()

    def _check_length(self, request: GenerationRequest) -> None:
        """Raise InvalidRequest for a prompt that is far too long, before tokenizing it delays other requests."""
        prompt, whole = request.prompt, request.prompt_only or request.params.truncate_prompt_tokens is not None
        context = self.engine.info.context_length
        if isinstance(prompt, str):
            size, limit, unit = (
                len(prompt),
                _MAX_PROMPT_LENGTH if whole else min(context * _MAX_TOKEN_CHARS, _MAX_PROMPT_LENGTH),
                "characters",
            )
        else:
            size, limit, unit = len(prompt), _MAX_PROMPT_LENGTH if whole else context, "tokens"
        if size > limit:
            raise InvalidRequest(
                f"This model's maximum context length is {context} tokens. However, your prompt has {size} {unit}. "
                "Please reduce the length of the prompt."
            )

    def _check_images(self, request: GenerationRequest) -> None:
        """Raise Unavailable while the images of waiting requests take too much memory."""
        held = [image for live in self._live for image in live.request.images]
        if sum([len(image.data) for image in [*held, *request.images]]) > MAX_WAITING_IMAGE_BYTES:
            text = f"{len(held)} images of other requests wait for model '{self.config.name}'; try again later"
            raise Unavailable(text, retry_after_s=1.0)

    def _check_supported(self, request: GenerationRequest) -> None:
        info = self.engine.info
        for name in request.params.non_defaults():
            if name not in info.supported_params and name != "fit_max_tokens":
                what = _UNSUPPORTED.get(name, f"'{name}'")
                raise Unsupported(f"engine '{info.engine}' of model '{self.config.name}' does not support {what}")
        logprobs = max(request.params.logprobs or 0, request.params.prompt_logprobs or 0)
        if logprobs > info.max_logprobs:
            raise InvalidRequest(
                f"engine '{info.engine}' of model '{self.config.name}' supports the log probabilities of "
                f"at most {info.max_logprobs} alternatives to each token, got {logprobs}"
            )
        if request.priority and not info.priorities:
            raise Unsupported(f"engine '{info.engine}' of model '{self.config.name}' does not support 'priority'")


def _deliver_nothing(deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
    """Do nothing: the generation has ended."""


class LiveGeneration(Waiting):
    """An admitted request: the `Generation` that its caller gets. Its `batch_size` is about the prompt's tokens."""

    __slots__ = (
        *("_deliver", "_finishing", "_lengths", "_missed", "_model", "_prompt_tokens", "_timer", "finished", "given"),
        *("generation", "last_token", "request"),
    )

    def __init__(self, model: GenerativeModel, request: GenerationRequest, on_deltas: DeltaCallback) -> None:
        length = len(request.prompt)
        tokens = length // _CHARACTERS_PER_TOKEN + 1 if isinstance(request.prompt, str) else max(length, 1)
        super().__init__(tokens + sum([image.width * image.height for image in request.images]) // _PIXELS_PER_TOKEN)
        if request.meter is not None:
            self.tenant, self.weight = request.meter.tenant, request.meter.weight
        self.request = request
        self.given = False  # whether the engine was given it
        self._missed: DeadlineMissed | None = None  # why it is aborted
        self._timer: asyncio.TimerHandle | None = None
        self.generation: Generation | None = None
        self.last_token = 0  # when the last token arrived, monotonic ns
        self.finished: list[FinishReason] = []  # one for each sequence that has ended
        self._model: GenerativeModel | None = model
        self._deliver = on_deltas
        self._lengths = [0] * request.params.n  # tokens of each sequence
        self._prompt_tokens = 0  # if the prompt has been returned
        self._finishing = False

    def on_deltas(self, deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
        """Count what the engine generates, and deliver it to the caller."""
        model = self._model
        if model is None:
            return
        if deltas and not self.request.prompt_only:
            timeline = self.request.timeline
            now = monotonic_ns()
            if not timeline.started:
                timeline.started = now
                model.begun(self, now)
                model.stats.first_token(now - timeline.received)
            else:
                model.stats.next_tokens(now - self.last_token)
            self.last_token = now
            tokens = 0
            if deltas[0].prompt is not None:
                self._prompt_tokens = len(deltas[0].prompt.token_ids)
            for delta in deltas:
                tokens += len(delta.token_ids)
                if 0 <= delta.index < len(self._lengths):
                    self._lengths[delta.index] += len(delta.token_ids)
                if delta.finish_reason is not None:
                    self.finished.append(delta.finish_reason)
            model.stats.generation_tokens += tokens
            if self.request.meter is not None:
                self.request.meter.add_tokens(tokens, now)
        if end is not None:
            self._model = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._missed is not None and isinstance(end, Cancelled):
                end = self._missed
            if self._finishing and isinstance(end, Cancelled):
                end = Usage(self._prompt_tokens, self._lengths[0])
                deltas = [Delta(0, "", finish_reason=FinishReason.STOP)]
                self.finished.append(FinishReason.STOP)
            model.ended(self, end)
            if isinstance(end, Usage) and self.request.meter is not None:
                self.request.meter.add_tokens(end.prompt_tokens, self.request.timeline.done)
            if isinstance(end, Usage) and not self.request.prompt_only:
                longest = max(self._lengths) if len(self._lengths) > 1 else end.completion_tokens
                model.stats.ended(self.request.timeline, end, self.finished, self.request.params, longest)
            elif isinstance(end, Cancelled | DeadlineMissed):
                model.stats.aborted(self.finished, self.request.params.n)
            self.generation = None
        deliver = self._deliver
        if end is not None:
            self._deliver = _deliver_nothing  # breaks a reference cycle, which holds the body of a request
        deliver(deltas, end)

    def abort(self) -> None:
        """Cancel the request."""
        if self.generation is not None:
            self.generation.abort()
        elif not self.given:
            self.on_deltas((), Cancelled("request was cancelled by the client"))

    def watch_deadlines(self) -> None:
        """Abort the request when its next deadline passes."""
        self._timer = None
        if self._model is not None and not self.expired():
            due = self._due()
            if due:
                wait_s = (due - monotonic_ns()) / 1e9
                self._timer = asyncio.get_running_loop().call_later(wait_s, self.watch_deadlines)

    def expired(self, needed_ns: int = 0) -> bool:
        """Whether a deadline has passed, or less time than a generation needs remains; then the request is aborted."""
        due, now = self._due(), monotonic_ns()
        deadline = self.request.timeline.deadline
        if not due or (due > now and (not deadline or deadline - needed_ns > now)):
            return False
        awaited = "end" if due == deadline else "first token"
        what = "could no longer be met" if due > now else f"passed before its {awaited}"
        stage = "execution" if self.given else "queue"
        self._missed = DeadlineMissed(f"the deadline of the request {what}", stage)
        self.abort()
        return True

    def _due(self) -> int:
        """Return the next deadline, monotonic ns; 0 for none."""
        timeline = self.request.timeline
        first = 0 if timeline.started else timeline.first_token_by
        return min(first or timeline.deadline, timeline.deadline or first)

    def finish(self) -> None:
        """End the request with what it has generated; see `FinishableGeneration`."""
        self._finishing = True
        self.abort()


def _respond(pending: Pending, form: TensorForm, deltas: Sequence[Delta], end: Usage | ConchError | None) -> None:
    """Pass on what is generated, in tensor form."""
    for response in form.responses(deltas, end):
        pending.send(response)
    if end is not None:
        pending.finish(form.last(end))
