"""A generative model against a simple model of its rules: in any schedule, every request ends once."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from time import monotonic_ns
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from conch.base.errors import (
    BackendError,
    Cancelled,
    ConchError,
    DeadlineMissed,
    FailureReason,
    InvalidRequest,
    QueueFull,
    Unavailable,
)
from conch.domain.generation import (
    Delta,
    DeltaCallback,
    EngineInfo,
    EngineLoad,
    FinishReason,
    Generation,
    GenerationRequest,
    SamplingParams,
    Usage,
)
from conch.domain.request import InferRequest
from conch.domain.tensor import BYTES, Tensor, pack_bytes
from conch.server.backends.engines.base import Engine
from conch.server.core.generative_model import GenerativeModel
from tests.unit.server.core.scripted import config

RUNNING, QUEUED, CONTEXT = 3, 2, 10


class MemoryEngine(Engine):
    """An engine that tests control. It delivers what comes after the end of a request, too."""

    def __init__(self) -> None:
        self.info = EngineInfo(
            engine="memory",
            context_length=CONTEXT,
            max_running=RUNNING,
            supported_params=frozenset({"n", "max_tokens"}),
        )
        self.load = EngineLoad()
        self.alive = True
        self.held: dict[DeltaCallback, GenerationRequest] = {}
        self.refuses = False

    @property
    def ready(self) -> bool:
        return self.alive

    async def start(self) -> None: ...

    def generate(self, request: GenerationRequest, listen: DeltaCallback) -> Generation:
        if not self.alive:
            raise Unavailable("the engine is being restarted", retry_after_s=1.0)
        if self.refuses:
            listen((), InvalidRequest("refused at once"))
        else:
            self.held[listen] = request
        return _Held(self, listen)

    def die(self) -> None:
        self.alive = False
        held, self.held = self.held, {}
        for listen in held:
            listen((), BackendError("the engine was killed"))

    async def stop(self) -> None:
        self.alive = False


@dataclass
class _Held:
    engine: MemoryEngine
    listen: DeltaCallback

    def abort(self) -> None:
        if self.engine.held.pop(self.listen, None) is not None:
            self.listen((), Cancelled("request was cancelled by the client"))


@dataclass(eq=False)
class Caller:
    """What one caller has requested and received."""

    n: int
    deltas: list[Delta] = field(default_factory=list)
    ends: list[Any] = field(default_factory=list)
    callback: DeltaCallback | None = None  # the callback that the engine has
    generation: Generation | None = None
    unfinished: set[int] = field(default_factory=set)

    def listen(self, deltas: Any, end: Usage | ConchError | None) -> None:
        assert not self.ends
        self.deltas += deltas
        if end is not None:
            self.ends.append(end)


def request(n: int = 1, prompt: str | list[int] = "a") -> GenerationRequest:
    return GenerationRequest(id="", model_name="m", prompt=prompt, params=SamplingParams(n=n))


def made(max_queue_size: int = QUEUED) -> tuple[GenerativeModel, MemoryEngine]:
    engine = MemoryEngine()
    return GenerativeModel(config(decoupled=True), 1, {}, engine, max_queue_size=max_queue_size), engine


class Life(RuleBasedStateMachine):
    """Requests start, get tokens, end, are aborted; the engine rejects, dies and restarts."""

    callers = Bundle("callers")

    def __init__(self) -> None:
        super().__init__()
        self.model, self.engine = made()
        self.live: set[Caller] = set()
        self.everyone: list[Caller] = []
        self.failed: Counter[FailureReason] = Counter()
        self.succeeded = 0
        self.reasons: Counter[FinishReason] = Counter()

    @rule(target=callers, n=st.integers(1, 3))
    def submit(self, n: int) -> Caller:
        caller = Caller(n, unfinished=set(range(n)))
        full = self._held() >= RUNNING + QUEUED
        if full or not self.engine.alive:
            with pytest.raises(QueueFull if full else Unavailable):
                self.model.generate(request(n), caller.listen)
            self.failed[FailureReason.REJECTED] += full
            return caller
        before = set(self.engine.held)
        caller.generation = self.model.generate(request(n), caller.listen)
        self.everyone.append(caller)
        if self.engine.refuses:
            self.failed[FailureReason.OTHER] += 1
            return caller
        (caller.callback,) = set(self.engine.held) - before
        self.live.add(caller)
        return caller

    @rule(caller=callers, ends=st.booleans(), tokens=st.integers(0, 2), data=st.data())
    def step(self, caller: Caller, ends: bool, tokens: int, data: st.DataObject) -> None:
        """Some of its sequences get tokens, and end. What comes after the end is dropped."""
        if caller.callback is None:
            return
        if caller not in self.live:
            caller.callback([Delta(0, "late", (1,))], None)
            caller.callback((), Usage(1, 1))
            return
        index = data.draw(st.sampled_from(sorted(caller.unfinished)))
        reason = data.draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH])) if ends else None
        if reason is not None:
            caller.unfinished.discard(index)
            self.reasons[reason] += 1
        end = None if caller.unfinished else Usage(1, 5)
        caller.callback([Delta(index, "t" * tokens, (7,) * tokens, reason)], end)
        if end is not None:
            self.engine.held.pop(caller.callback)
            self.live.discard(caller)
            self.succeeded += 1

    @rule(caller=callers)
    def give_up(self, caller: Caller) -> None:
        if caller.generation is not None:
            caller.generation.abort()
        if caller in self.live:
            self.live.discard(caller)
            self.failed[FailureReason.CANCELED] += 1
            self.reasons[FinishReason.ABORT] += len(caller.unfinished)

    @rule(caller=consumes(callers))
    def forget(self, caller: Caller) -> None:
        """Take the caller out of the bundle."""

    @rule(refuses=st.booleans())
    def refuse(self, refuses: bool) -> None:
        self.engine.refuses = refuses

    @rule()
    def die(self) -> None:
        self.engine.die()
        self.failed[FailureReason.BACKEND] += len(self.live)
        # Those whose sequences had ended in part are not counted as finished.
        self.reasons -= Counter({r: c for r, c in self._partial().items() if c})
        self.live.clear()

    def _held(self) -> int:
        """Return the number of live sequences, which the bound counts."""
        return sum(caller.n for caller in self.live)

    def _partial(self) -> Counter[FinishReason]:
        return Counter(d.finish_reason for caller in self.live for d in caller.deltas if d.finish_reason is not None)

    @rule()
    def revive(self) -> None:
        self.engine.alive = True

    @invariant()
    def every_request_ends_once(self) -> None:
        for caller in self.everyone:
            assert len(caller.ends) == (caller not in self.live)
        assert self.model.ready is self.engine.alive

    @invariant()
    def the_statistics_are_right(self) -> None:
        statistics, stats = self.model.statistics, self.model.stats
        assert statistics.pending == sum(not caller.deltas for caller in self.live)
        assert statistics.success.count == self.succeeded
        assert {reason: count for reason, count in statistics.failures.items() if count} == +self.failed
        assert stats.generation_tokens == sum(len(d.token_ids) for caller in self.everyone for d in caller.deltas)
        reported = Counter({reason: count for reason, count in stats.finished.items() if count})
        assert reported == +(self.reasons - self._partial())
        assert (self.model.refusal(0) is not None) == (self._held() >= RUNNING + QUEUED)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=80, stateful_step_count=40)


async def test_stop_fails_all_requests() -> None:
    model, engine = made()
    callers = [Caller(1) for _ in range(3)]
    for caller in callers:
        model.generate(request(), caller.listen)
    await model.stop()
    assert [type(caller.ends[0]) for caller in callers] == [Unavailable] * 3
    engine.die()  # fails them again, a no-op
    await model.drain()


@pytest.mark.parametrize(
    ("prompt", "size"), [([1] * (CONTEXT + 1), "11 tokens"), ("a" * (CONTEXT * 128 + 1), "1281 characters")]
)
def test_overlong_prompt_does_not_reach_the_engine(prompt: Any, size: str) -> None:
    model, engine = made()
    with pytest.raises(InvalidRequest, match=f"maximum context length is {CONTEXT} tokens.*your prompt has {size}"):
        model.generate(request(prompt=prompt), Caller(1).listen)
    assert not engine.held


def test_immediate_rejection_in_tensor_form() -> None:
    model, engine = made()
    engine.refuses = True
    answers: list[Any] = []
    sent = InferRequest("m", [Tensor("text_input", BYTES, (1,), pack_bytes(["a"]))])
    pending = model.submit(sent, lambda answer, final: answers.append((answer, final)))
    assert [(str(answer), final) for answer, final in answers] == [("refused at once", True)]
    pending.cancel()
    assert len(answers) == 1


# ── prompts that wait, deadlines ──

SECOND = 1_000_000_000
LONG = [1] * 2000


class TenantMeter:
    """Whose request it is."""

    def __init__(self, tenant: str, weight: int = 1) -> None:
        self.tenant, self.weight = tenant, weight

    def stage(self, _model: str, _version: str) -> "TenantMeter":
        return self

    def add_tokens(self, count: int, now: int) -> None: ...


class Prompts:
    """A model with a roomy context, and what its engine was given, by name."""

    def __init__(self, max_queue_size: int = 0) -> None:
        self.model, self.engine = made(max_queue_size)
        self.engine.info = replace(self.engine.info, context_length=8192)
        self.callers: dict[str, Caller] = {}

    def send(self, name: str, prompt: str | list[int] = "a", tenant: str = "", **deadlines: float) -> Caller:
        caller = self.callers[name] = Caller(1)
        sent = request(prompt=prompt)
        sent.id = name
        sent.meter = TenantMeter(tenant) if tenant else None
        for deadline, seconds in deadlines.items():
            setattr(sent.timeline, deadline, sent.timeline.received + int(seconds * SECOND))
        caller.generation = self.model.generate(sent, caller.listen)
        return caller

    def given(self) -> str:
        return " ".join(request.id for request in self.engine.held.values())

    def token(self, name: str) -> None:
        """Have the engine begin to answer a request."""
        self._listen(name)([Delta(0, "t", (7,))], None)

    def end(self, name: str) -> None:
        listen = self._listen(name)
        del self.engine.held[listen]
        listen([Delta(0, "", (), FinishReason.STOP)], Usage(1, 1))

    def _listen(self, name: str) -> DeltaCallback:
        return next(listen for listen, request in self.engine.held.items() if request.id == name)

    def missed(self, stage: str) -> int:
        return self.model.statistics.deadline_misses[stage]


def test_short_prompts_do_not_wait_behind_long_ones() -> None:
    prompts = Prompts()
    for name in ("long1", "long2", "long3"):
        prompts.send(name, LONG)
    for name in ("s1", "s2", "s3", "s4", "s5"):
        prompts.send(name)
    assert prompts.given() == "long1 s1 s2 s3 s4 s5"
    for name in ("s1", "s2"):
        prompts.end(name)
    prompts.token("long1")
    assert prompts.given() == "long1 s3 s4 s5"  # as many as it computes, and one
    prompts.end("s3")
    assert prompts.given() == "long1 s4 s5 long2"
    prompts.end("long2")
    prompts.callers["long3"].generation.abort()
    assert isinstance(prompts.callers["long3"].ends[0], Cancelled)
    assert prompts.model.statistics.pending == 2


def test_tenants_share_an_engine() -> None:
    prompts = Prompts()
    for number in range(8):
        prompts.send(f"a{number}", tenant="flood")
    for number in range(3):
        prompts.send(f"b{number}", tenant="other")
    assert prompts.given() == "a0 a1 a2 a3"
    for name in ("a0", "a1", "a2", "a3"):
        prompts.token(name)
        prompts.end(name)
    assert prompts.given() == "a4 b0 a5 b1"


def test_a_full_queue_makes_room_for_a_tenant_with_less_than_its_share() -> None:
    prompts = Prompts(max_queue_size=4)
    for number in range(RUNNING + 4):
        prompts.send(f"a{number}", tenant="flood")
    with pytest.raises(QueueFull):
        prompts.send("refused", tenant="flood")
    prompts.send("b", tenant="other")
    assert isinstance(prompts.callers["a6"].ends[0], QueueFull)
    for number in range(3):
        prompts.end(f"a{number}")
    assert prompts.given() == "a3 a4 b a5"


def test_what_waits_ends_when_the_engine_dies() -> None:
    prompts = Prompts()
    for name in ("long1", "long2"):
        prompts.send(name, LONG)
    prompts.engine.die()
    assert [type(caller.ends[0]) for caller in prompts.callers.values()] == [BackendError, Unavailable]
    with pytest.raises(Unavailable):
        prompts.send("long3", LONG)
    prompts.engine.alive = True
    prompts.send("long4", LONG)
    assert prompts.given() == "long4"


@pytest.mark.parametrize("deadline", ["deadline", "first_token_by"])
def test_a_deadline_that_has_passed_is_refused(deadline: str) -> None:
    prompts = Prompts()
    with pytest.raises(DeadlineMissed, match="before it was queued"):
        prompts.send("late", **{deadline: -1})
    assert (prompts.given(), prompts.missed("arrival")) == ("", 1)


async def test_a_first_token_that_the_prompts_before_make_impossible_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = Prompts()
    prompts.send("first", [1] * 100, first_token_by=1)  # nothing is known
    began = monotonic_ns()
    monkeypatch.setattr("conch.server.core.generative_model.monotonic_ns", lambda: began + 1000 * SECOND)
    prompts.token("first")  # 100 tokens took 1000 s
    prompts.send("second", [1] * 100)
    sent = request(prompt=[1] * 50)
    for seconds, refused in ((1400, True), (1600, False)):
        sent.timeline.first_token_by = began + (1000 + seconds) * SECOND
        if refused:
            with pytest.raises(DeadlineMissed, match="would take about") as error:
                prompts.model.generate(sent, Caller(1).listen)
            assert 90 < (error.value.retry_after_s or 0) < 110
        else:
            prompts.model.generate(sent, Caller(1).listen)
    assert prompts.missed("estimate") == 1


async def test_an_end_that_generations_usually_have_later_is_refused() -> None:
    prompts = Prompts()
    prompts.send("first", deadline=600)  # nothing is known
    for _ in range(100):
        prompts.token("first")
    prompts.end("first")
    prompts.model.statistics.count_execution(1, 0, 0, 1000 * SECOND, 1000 * SECOND)  # what it took
    with pytest.raises(DeadlineMissed, match=r"its execution alone takes"):
        prompts.send("long", deadline=400)
    prompts.send("longer", deadline=3600)
    short = request()
    short.params = SamplingParams(max_tokens=10)
    short.timeline.deadline = short.timeline.received + 400 * SECOND
    prompts.model.generate(short, Caller(1).listen)
    assert prompts.missed("estimate") == 1


async def test_what_has_too_little_time_left_is_not_given_to_the_engine() -> None:
    prompts = Prompts()
    prompts.send("long1", LONG, deadline=3600)
    late = prompts.send("long2", LONG, deadline=500)
    prompts.send("long3", LONG, deadline=3600)
    prompts.model._times.update({}, 1)
    for _ in range(100):
        prompts.token("long1")
    assert prompts.given() == "long1 long2"
    prompts.model.statistics.count_execution(1, 0, 0, 1000 * SECOND, 1000 * SECOND)
    late2 = prompts.send("long4", LONG)
    late2.generation.request.timeline.deadline = monotonic_ns() + 500 * SECOND
    prompts.end("long2")
    assert prompts.given() == "long1 long3"
    prompts.end("long3")
    assert late2.ends[0].stage == "queue"
    assert prompts.given() == "long1"
    assert len(late.ends) == 1


async def test_a_generation_ends_with_its_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = Prompts()
    slow, begun, waiting = (
        prompts.send("slow", LONG, first_token_by=600),
        prompts.send("begun", first_token_by=600, deadline=1200),
        prompts.send("waiting", LONG, deadline=600),
    )
    prompts.token("begun")
    now = monotonic_ns()
    live = [caller.generation for caller in (slow, begun, waiting)]
    for seconds, missed in ((601, [1, 0, 1]), (1201, [1, 1, 1])):
        later = now + seconds * SECOND
        monkeypatch.setattr("conch.server.core.generative_model.monotonic_ns", lambda later=later: later)
        for generation in live:
            generation.watch_deadlines()
        assert [len(caller.ends) for caller in (slow, begun, waiting)] == missed
    ends = [caller.ends[0] for caller in (slow, begun, waiting)]
    assert [(type(end), end.stage) for end in ends] == [
        (DeadlineMissed, stage) for stage in ("execution", "execution", "queue")
    ]
    assert "first token" in ends[0].message
    assert prompts.given() == ""
    assert (prompts.missed("execution"), prompts.missed("queue")) == (2, 1)
    await asyncio.sleep(0)
