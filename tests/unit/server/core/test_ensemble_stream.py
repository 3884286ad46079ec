"""Ensembles with decoupled steps, and with a limit at their steps: order, end, errors, cancellation."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conch.base.errors import Cancelled, ConchError, ConfigError, Unavailable
from conch.domain.model_config import EnsembleStep, ModelConfig, TensorSpec
from conch.domain.request import InferResponse
from conch.domain.scheduling.flow import flow_of
from conch.domain.tensor import Tensor
from conch.server.core.ensembles import ensemble_run
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.scheduling.batching_model import BatchingModel
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, request


def step(model: str, taken: str, given: str) -> EnsembleStep:
    return EnsembleStep(model, -1, {"IN": taken}, {"OUT": given})


def chain(*names: str, limit: int = 0) -> ModelConfig:
    tensors = ["IN", *(f"t{i}" for i in range(len(names) - 1)), "OUT"]
    steps = tuple(step(name, tensors[i], tensors[i + 1]) for i, name in enumerate(names))
    return replace(config("e"), platform="ensemble", backend="", ensemble_steps=steps, max_inflight_requests=limit)


class World:
    """An ensemble of scripted models; those with names that begin with d are decoupled."""

    def __init__(self, model_config: ModelConfig, **fields: object) -> None:
        """Assign; `fields` are those of the models' configurations."""
        self.config = model_config
        self.fields = fields
        self.workers: dict[str, list[ScriptedInstance]] = {}
        self.models: dict[str, BatchingModel] = {}

    async def start(self, instances: int = 16) -> EnsembleModel:
        configs = {
            name: replace(config(name, **self.fields), decoupled=name.startswith("d"))
            for name in {step.model_name for step in self.config.ensemble_steps}
        }
        for name, model_config in configs.items():
            workers = self.workers[name] = [ScriptedInstance() for _ in range(instances)]
            self.models[name] = BatchingModel(model_config, 1, {}, workers, asyncio.get_running_loop())
            await self.models[name].start()
        flow = flow_of(self.config, [configs[step.model_name] for step in self.config.ensemble_steps])
        return EnsembleModel(self.config, 1, {}, lambda s: self.models[s.model_name], flow)

    def executions(self, name: str) -> list[object]:
        """Return what a model has in hand, the oldest first."""
        executions = [batch.executions[0] for worker in self.workers[name] for batch in worker.batches]
        return sorted(executions, key=lambda execution: execution.queued)

    def end(self, name: str, execution: object, answer: object) -> None:
        """End one execution and have its instance take the next."""
        for worker in self.workers[name]:
            for batch in list(worker.batches):
                if batch.executions[0] is execution:
                    worker.batches.remove(batch)
                    execution.finish(answer)
                    batch.release()


def response(*values: float) -> InferResponse:
    return InferResponse("m", 1, [Tensor.from_numpy("OUT", np.array(values, np.float32))])


def answer_plain(world: World, name: str, execution: object) -> None:
    """Add one to what came in."""
    values = execution.request.inputs[0].to_numpy() + 1
    world.end(name, execution, response(*values))


def sent(caller: Caller) -> list[float]:
    return [float(answer.outputs[0].to_numpy()[0]) for answer in caller.answers if isinstance(answer, InferResponse)]


async def test_each_response_opens_a_branch_and_they_keep_their_order() -> None:
    world = World(chain("d", "a"))
    model = await world.start()
    caller = Caller()
    model.submit(request(id="r"), caller)
    (producer,) = world.executions("d")
    for number in range(3):
        producer.send(response(number, 0))
    for execution in reversed(world.executions("a")[1:]):
        answer_plain(world, "a", execution)
    assert caller.answers == []
    answer_plain(world, "a", world.executions("a")[0])
    assert sent(caller) == [1, 2, 3]
    assert caller.finals == 0
    world.end("d", producer, None)
    assert caller.finals == 1
    assert sent(caller) == [1, 2, 3]
    assert [answer.id for answer in caller.answers] == ["r"] * 3
    assert model.statistics.success.count == 1


async def test_stream_without_responses_ends() -> None:
    world = World(chain("d", "a"))
    caller = Caller()
    (await world.start()).submit(request(), caller)
    world.end("d", world.executions("d")[0], None)
    assert (caller.finals, caller.answers) == (1, [])


@pytest.mark.parametrize("flagged", [False, True])
async def test_the_last_response_is_final_when_the_decoupled_step_has_ended(flagged: bool) -> None:
    world = World(chain("d", "a"))
    finals: list[bool] = []
    (await world.start()).submit(request(), lambda _, final: finals.append(final))
    producer = world.executions("d")[0]
    producer.send(response(1, 1))
    if flagged:
        producer.send(response(2, 2))
        world.end("d", producer, None)
    else:
        world.end("d", producer, response(2, 2))
    for execution in world.executions("a"):
        answer_plain(world, "a", execution)
    assert finals == [False, True]


async def test_error_of_a_later_step_ends_the_stream_and_cancels_all_steps() -> None:
    world = World(chain("d", "a"))
    caller = Caller()
    (await world.start()).submit(request(), caller)
    producer = world.executions("d")[0]
    producer.send(response(1, 1))
    producer.send(response(2, 2))
    first, second = world.executions("a")
    answer_plain(world, "a", first)
    world.end("a", second, ConchError("no such luck"))
    assert sent(caller) == [1 + 1]
    assert caller.answer.message == "in ensemble 'e', no such luck (step 'a')"
    assert producer.cancelled
    producer.send(response(3, 3))
    assert world.executions("a") == []


async def test_error_of_the_decoupled_step_after_responses() -> None:
    world = World(chain("d", "a"))
    caller = Caller()
    (await world.start()).submit(request(), caller)
    producer = world.executions("d")[0]
    producer.send(response(1, 1))
    world.end("d", producer, ConchError("halfway"))
    assert caller.answer.message == "in ensemble 'e', halfway (step 'd')"
    assert world.executions("a")[0].cancelled


async def test_cancellation_reaches_every_step() -> None:
    world = World(chain("d", "a", limit=1))
    model = await world.start()
    caller = Caller()
    pending = model.submit(request(), caller)
    producer = world.executions("d")[0]
    for number in range(3):
        producer.send(response(number, 0))
    (running,) = world.executions("a")
    pending.cancel()
    assert isinstance(caller.answer, Cancelled)
    assert producer.cancelled
    assert running.cancelled
    await asyncio.wait_for(asyncio.gather(model.drain(), *(model.drain() for model in world.models.values())), 60)
    again = Caller()
    model.submit(request(), again)  # the slots have been returned
    assert len([execution for execution in world.executions("d") if not execution.cancelled]) == 1


async def test_a_limit_holds_at_each_step_over_all_requests() -> None:
    world = World(chain("a", "b", limit=2))
    model = await world.start()
    callers = [Caller() for _ in range(5)]
    for caller in callers:
        model.submit(request(), caller)
    most = 0
    while under_way := [(name, execution) for name in "ab" for execution in world.executions(name)]:
        for name in "ab":
            most = max(most, sum(execution == name for execution, _ in under_way))
        answer_plain(world, *under_way[0])
    assert most == 2
    assert [sent(caller) for caller in callers] == [[2]] * 5


async def test_limit_survives_rejections(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(chain("a", "b", limit=1))
    model = await world.start()
    callers = [Caller() for _ in range(2000)]
    pending = [model.submit(request(), caller) for caller in callers]
    monkeypatch.setattr(world.models["b"], "submit", lambda *_: (_ for _ in ()).throw(Unavailable("gone")))
    monkeypatch.setattr(world.models["a"], "submit", lambda *_: (_ for _ in ()).throw(Unavailable("gone")))
    pending[0].cancel()
    assert all(caller.finals == 1 for caller in callers)
    assert "gone (step 'a')" in callers[-1].answer.message


async def test_held_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_run, "_MAX_HELD_BYTES", 20)
    world = World(chain("d", "a"))
    caller = Caller()
    (await world.start()).submit(request(), caller)
    producer = world.executions("d")[0]
    for _ in range(3):
        producer.send(response(1, 1))
    assert "in ensemble 'e', model 'd' sends faster than the following steps process" in caller.answer.message
    assert producer.cancelled


async def test_an_output_that_a_response_lacks_is_named() -> None:
    world = World(chain("d", "a"))
    caller = Caller()
    (await world.start()).submit(request(), caller)
    producer = world.executions("d")[0]
    producer.send(InferResponse("d", 1, []))  # of no consequence, as without an ensemble
    producer.send(InferResponse("d", 1, [Tensor.from_numpy("OTHER", np.zeros(1, np.float32))]))
    assert caller.answer.message == (
        "in ensemble 'e', [request id: <id_unknown>] expected 1 inputs but got 0 inputs for model 'a'. "
        "Got input(s) [], but missing required input(s) ['IN']. Please provide all required input(s). "
        "('IN' is tensor 't0', output 'OUT' of step 'd', which its response lacks) (step 'a')"
    )


async def test_a_decoupled_step_whose_outputs_are_not_requested_does_not_run() -> None:
    steps = (step("a", "IN", "t0"), step("d", "t0", "OUT"))
    outputs = (TensorSpec("t0", "FP32", (2,)), TensorSpec("OUT", "FP32", (2,)))
    world = World(replace(chain("a", "d"), ensemble_steps=steps, outputs=outputs))
    model = await world.start()
    first, second = Caller(), Caller()
    model.submit(request(outputs=("t0",)), first)
    answer_plain(world, "a", world.executions("a")[0])
    assert world.executions("d") == []
    assert (first.finals, sent(first)) == (1, [1])
    model.submit(request(outputs=("OUT",)), second)
    answer_plain(world, "a", world.executions("a")[0])
    producer = world.executions("d")[0]
    producer.send(response(5, 5))
    world.end("d", producer, response(6, 6))
    assert (second.finals, sent(second)) == (1, [5, 6])


async def test_output_that_a_response_lacks_is_omitted_in_its_branch_only() -> None:
    steps = (EnsembleStep("d", -1, {"IN": "IN"}, {"OUT": "OUT", "MORE": "MORE"}),)
    outputs = (TensorSpec("OUT", "FP32", (2,)), TensorSpec("MORE", "FP32", (2,)))
    world = World(replace(chain("d"), ensemble_steps=steps, outputs=outputs), outputs=outputs)
    caller = Caller()
    (await world.start()).submit(request(), caller)
    producer = world.executions("d")[0]
    more = Tensor.from_numpy("MORE", np.zeros(2, np.float32))
    producer.send(InferResponse("d", 1, [*response(1, 1).outputs, more]))
    world.end("d", producer, response(2, 2))
    assert [[tensor.name for tensor in answer.outputs] for answer in caller.answers] == [["OUT", "MORE"], ["OUT"]]


async def test_response_without_outputs_is_passed_on() -> None:
    world = World(chain("d"))
    caller = Caller()
    (await world.start()).submit(request(), caller)
    producer = world.executions("d")[0]
    producer.send(InferResponse("d", 1, []))
    producer.send(response(1, 1))
    world.end("d", producer, InferResponse("d", 1, []))
    assert [len(answer.outputs) for answer in caller.answers] == [0, 1, 0]
    assert caller.finals == 1


async def test_response_without_outputs_is_an_error_where_a_step_needs_them() -> None:
    world = World(chain("d", "a"))
    caller = Caller()
    (await world.start()).submit(request(), caller)
    world.end("d", world.executions("d")[0], InferResponse("d", 1, []))
    assert "missing required input(s) ['IN']" in str(caller.answer)


def test_parallel_decoupled_steps_are_rejected() -> None:
    model = replace(chain("d1", "d2"), outputs=(TensorSpec("x", "FP32", (2,)), TensorSpec("y", "FP32", (2,))))
    model = replace(model, ensemble_steps=(step("d1", "IN", "x"), step("d2", "IN", "y")))
    configs = [replace(config(name), decoupled=True) for name in ("d1", "d2")]
    with pytest.raises(
        ConfigError,
        match=r"receives inputs originated from different decoupled models: step 0 \('d1'\) and step 1 \('d2'\) use",
    ):
        flow_of(model, configs)


def test_large_outputs_with_one_reader_are_found() -> None:
    def flow(*dims: int, outputs: str = "IN a b", decoupled: bool = False) -> object:
        specs = tuple(TensorSpec(name, "FP32", (2,)) for name in outputs.split()[2:])
        ensemble = replace(chain("a", "b"), outputs=specs)
        ensemble = replace(ensemble, ensemble_steps=(step("a", "IN", "a"), step("b", "a", "b")))
        maker = replace(config("a"), outputs=(TensorSpec("OUT", "FP32", dims),), decoupled=decoupled)
        return flow_of(ensemble, [maker, config("b")]).readers

    assert flow(512, 512) == {0: {"OUT": 1}}
    assert flow(512, 511) == {}
    assert flow(-1, 512, 512) == {}
    assert flow(512, 512, outputs="IN a b a") == {}
    assert flow(512, 512, decoupled=True) == {}


@settings(max_examples=60)
@given(st.data())
def test_any_schedule_gives_the_sequential_result(data: st.DataObject) -> None:
    """The rules as a plain function: the responses of each stage, in order, each through the next stage."""
    names = data.draw(st.sampled_from([("d", "a"), ("a", "d"), ("d", "e"), ("d1", "d2"), ("d1", "a", "d2", "b")]))
    limit = data.draw(st.sampled_from([0, 1, 3]))
    asyncio.run(_run_schedule(data, names, limit))


async def _run_schedule(data: st.DataObject, names: tuple[str, ...], limit: int) -> None:
    world = World(chain(*names, limit=limit))
    model = await world.start()
    callers = [Caller() for _ in range(data.draw(st.integers(1, 3)))]
    for caller in callers:
        model.submit(request(), caller)
    todo: dict[int, int] = {}  # responses that a decoupled execution has still to send
    kept: list[object] = []  # so that no id comes twice
    while True:
        choices = [(name, execution) for name in names for execution in world.executions(name)]
        if not choices:
            break
        name, execution = data.draw(st.sampled_from(choices))
        if not name.startswith("d"):
            answer_plain(world, name, execution)
            continue
        value = float(execution.request.inputs[0].to_numpy()[0])
        count = int(value) % 3 + 1  # how many, as the value says
        kept.append(execution)
        left = todo.setdefault(id(execution), count)
        if left == 0:
            world.end(name, execution, None)
        elif left == 1 and int(value) % 2:
            world.end(name, execution, response(value * 3 + count, 0))
        else:
            execution.send(response(value * 3 + count - left + 1, 0))
            todo[id(execution)] = left - 1
    expected = [0.0]
    for name in names:
        if name.startswith("d"):
            expected = [v * 3 + i for v in expected for i in range(1, int(v) % 3 + 2)]
        else:
            expected = [v + 1 for v in expected]
    for caller in callers:
        assert caller.finals == 1
        assert sent(caller) == expected
