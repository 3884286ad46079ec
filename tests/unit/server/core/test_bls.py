"""BLS calls: random schedules against a simple model of deadlocks."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.base.errors import Unavailable
from conch.domain.request import Timeline
from conch.domain.scheduling.waiting import State
from conch.server.backends.bls import BlsCaller
from conch.server.core.bls import BlsCalls
from conch.server.core.catalog import Catalog
from conch.server.core.inference import Inference
from conch.server.core.pending import Pending
from conch.server.core.scheduling.batching_model import BatchingModel
from conch.server.repository.namespaces import ModelId
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, request

COUNTS = {"a": 1, "b": 2, "c": 1, "d": 3}

actions = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from(sorted(COUNTS)), st.just(0)),
    st.tuples(st.just("call"), st.sampled_from(sorted(COUNTS)), st.integers(0, 6)),
    st.tuples(st.just("answer"), st.just(""), st.integers(0, 6)),
)


class Made:
    """A call that an instance has made; `pending` is what was admitted for it."""

    def __init__(self, callee: str, pending: Pending | None, received: Caller) -> None:
        self.callee = callee
        self.pending = pending
        self.received = received


class World:
    """Models with instances, what clients have sent, and what instances have called."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.catalog = Catalog()
        self.models = {
            name: BatchingModel(config(name), 1, {}, [ScriptedInstance() for _ in range(count)], loop)
            for name, count in COUNTS.items()
        }
        self.instances = [(name, instance) for name, model in self.models.items() for instance in model.instances]  # type: list[tuple[str, ScriptedInstance]]
        self.calls = BlsCalls(
            self.catalog,
            Inference(self.catalog, strict_readiness=True, started=lambda: True),
            lambda: None,  # type: ignore[arg-type, return-value]
            started=lambda: True,
        )
        self.clients: list[Caller] = []
        self.made: dict[ScriptedInstance, list[Made]] = {instance: [] for _, instance in self.instances}

    async def start(self) -> None:
        for name, model in self.models.items():
            await model.start()
            self.catalog.publish(ModelId("", name), {1: model})

    async def stop(self) -> None:
        await asyncio.gather(*(model.stop() for model in self.models.values()))

    def open_calls(self, instance: ScriptedInstance) -> Iterator[Made]:
        return (made for made in self.made[instance] if not made.received.finals)

    def ask(self, model: str) -> None:
        received = Caller()
        self.clients.append(received)
        self.models[model].submit(request(name=model), received)

    def call(self, number: int, callee: str) -> None:
        busy = [(name, instance) for name, instance in self.instances if instance.batches]
        if not busy:
            return
        name, instance = busy[number % len(busy)]
        received = Caller()
        made = Made(callee, None, received)
        self.made[instance].append(made)
        executions = tuple(instance.batches[0].executions)
        call = self.calls.call(BlsCaller(name, "", executions, instance), request(name=callee), received, many=False)
        made.pending = call.pending
        refused = bool(received.finals) and isinstance(received.answer, Unavailable)
        assert refused != self.will_be_answered(made, refused)
        if refused:
            assert f"model '{name}' to model '{callee}' can only wait for itself" in str(received.answer)

    def will_be_answered(self, call: Made, refused: bool) -> bool:
        """Whether a call can be, if every execution ends as soon as it can: what becomes free, takes the call."""
        free: set[ScriptedInstance] = set()
        while True:
            more = {
                instance
                for _, instance in self.instances
                if all(
                    self._can_be_taken(made, free)
                    for made in self.made[instance]
                    if not made.received.finals or (refused and made is call)
                )
            }
            if more == free:
                return self._can_be_taken(call, free)
            free = more

    def _can_be_taken(self, made: Made, free: set[ScriptedInstance]) -> bool:
        if made.pending is not None and made.pending.state is State.EXECUTING:
            return any(instance in free for instance in self._executing(made.pending))
        return any(name == made.callee and instance in free for name, instance in self.instances)

    def _executing(self, pending: Pending) -> Iterator[ScriptedInstance]:
        for _, instance in self.instances:
            if any(pending in batch.executions for batch in instance.batches):
                yield instance

    def answer(self, number: int) -> bool:
        _, instance = self.instances[number]
        if not instance.batches or any(self.open_calls(instance)):
            return False
        instance.answer()
        return True


@pytest.mark.slow
@given(st.lists(actions, min_size=20, max_size=80))
@settings(max_examples=150)
def test_exactly_the_deadlocked_calls_are_rejected(schedule: list[tuple[str, str, int]]) -> None:
    async def run() -> None:
        world = World()
        await world.start()
        for action, model, number in schedule:
            if action == "ask":
                world.ask(model)
            elif action == "call":
                world.call(number, model)
            else:
                world.answer(number)
            await asyncio.sleep(0)
        while any(instance.batches for _, instance in world.instances):
            assert any(world.answer(number) for number in range(len(world.instances))), "a deadlock"
            await asyncio.sleep(0)
        assert all(received.finals == 1 for received in world.clients)
        assert all(made.received.finals == 1 for calls in world.made.values() for made in calls)
        assert not world.calls._holding
        await world.stop()

    asyncio.run(run())


@pytest.mark.parametrize(("deadlines", "expected"), [((600,), 600), ((600, 900), 900), ((600, 0), 0)])
async def test_a_call_has_the_latest_deadline_of_its_requests(deadlines: tuple[int, ...], expected: int) -> None:
    world = World()
    await world.start()
    received = [Timeline() for _ in deadlines]
    for timeline, seconds in zip(received, deadlines, strict=True):
        timeline.deadline = timeline.received + seconds * 10**9 if seconds else 0
    executions = [Pending(request(name="a", timeline=timeline), Caller(), world.models["a"]) for timeline in received]
    made = request(name="b")
    world.calls.call(BlsCaller("a", "", executions, None), made, Caller(), many=False)
    assert made.timeline.deadline == (received[deadlines.index(expected)].deadline if expected else 0)
    await world.stop()
