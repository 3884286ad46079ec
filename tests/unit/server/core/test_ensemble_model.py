"""Ensembles: order of the steps, errors with their steps, sums of times, and checks between steps."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conch.base.errors import BackendError, Cancelled, Code, ConchError, ConfigError, FailureReason, QueueFull
from conch.domain.model_config import EnsembleStep, ModelConfig, TensorSpec
from conch.domain.request import SEQUENCE_END, SEQUENCE_START, InferResponse
from conch.domain.tensor import Tensor
from conch.server.core.ensembles.contract import check_ensemble, misfit_notices
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.scheduling.batching_model import BatchingModel
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, request


def step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> EnsembleStep:
    return EnsembleStep(model, -1, inputs, outputs)


def ensemble(*steps: EnsembleStep, outputs: tuple[str, ...] = ("OUT",), **fields: object) -> ModelConfig:
    specs = tuple(TensorSpec(name, "FP32", (2,)) for name in outputs)
    return replace(config("e", outputs=specs, **fields), platform="ensemble", backend="", ensemble_steps=steps)


DIAMOND = ensemble(
    step("a", {"IN": "IN"}, {"OUT": "x"}),
    step("b", {"IN": "x"}, {"OUT": "y"}),
    step("c", {"IN": "x"}, {"OUT": "z"}),
    outputs=("y", "z"),
)


async def stages(
    model_config: ModelConfig, max_queue_size: int = 0
) -> tuple[dict[str, BatchingModel], dict[str, ScriptedInstance]]:
    models: dict[str, BatchingModel] = {}
    workers: dict[str, ScriptedInstance] = {}
    loop = asyncio.get_running_loop()
    for name in {s.model_name for s in model_config.ensemble_steps}:
        workers[name] = ScriptedInstance()
        models[name] = BatchingModel(config(name), 1, {}, [workers[name]], loop, max_queue_size=max_queue_size)
        await models[name].start()
    return models, workers


async def served(
    model_config: ModelConfig, max_queue_size: int = 0
) -> tuple[EnsembleModel, dict[str, ScriptedInstance]]:
    models, workers = await stages(model_config, max_queue_size)
    return EnsembleModel(model_config, 1, {}, lambda s: models[s.model_name]), workers


async def test_steps_start_with_their_tensors_and_independent_ones_run_concurrently() -> None:
    model, workers = await served(DIAMOND)
    caller = Caller()
    model.submit(request(id="r"), caller)
    assert [len(workers[name].batches) for name in "abc"] == [1, 0, 0]
    workers["a"].answer()
    assert [len(workers[name].batches) for name in "bc"] == [1, 1]
    workers["c"].answer()
    assert caller.finals == 0
    workers["b"].answer()
    assert isinstance(caller.answer, InferResponse)
    assert (caller.answer.id, [t.name for t in caller.answer.outputs]) == ("r", ["y", "z"])


async def test_times_are_the_sums_over_the_steps() -> None:
    model, workers = await served(DIAMOND)
    sent = request()
    model.submit(sent, Caller())
    for name in "abc":
        workers[name].answer()
    statistics = model.statistics
    assert (statistics.success.count, statistics.execution_count) == (1, 1)
    total = statistics.compute_input.ns + statistics.compute_infer.ns + statistics.compute_output.ns
    assert total > 0
    assert statistics.queue.count == 1


async def test_only_requested_outputs_are_answered() -> None:
    model, workers = await served(DIAMOND)
    caller = Caller()
    model.submit(request(outputs=("z",)), caller)
    workers["a"].answer()
    assert workers["b"].batches == []  # no requested output needs it
    workers["c"].answer()
    assert [t.name for t in caller.answer.outputs] == ["z"]


async def test_a_step_runs_if_another_one_needs_it_though_its_output_is_not_requested() -> None:
    steps = step("a", {"IN": "IN"}, {"OUT": "x"}), step("b", {"IN": "x"}, {"OUT": "y"})
    model, workers = await served(ensemble(*steps, outputs=("x", "y")))
    last, first = Caller(), Caller()
    model.submit(request(outputs=("y",)), last)
    workers["a"].answer()
    workers["b"].answer()
    assert [t.name for t in last.answer.outputs] == ["y"]
    model.submit(request(outputs=("x",)), first)
    workers["a"].answer()
    assert workers["b"].batches == []
    assert [t.name for t in first.answer.outputs] == ["x"]


async def test_step_that_does_not_run_rejects_nothing() -> None:
    model, workers = await served(DIAMOND, max_queue_size=1)
    for _ in range(2):
        model.submit(request(), Caller())
        workers["a"].answer()  # one executes in b and in c, the other waits there
    for _ in range(2):
        workers["c"].answer()
    assert model.refusal(0) is None
    model.submit(request(outputs=("z",)), caller := Caller())
    workers["a"].answer()
    workers["c"].answer()
    assert [t.name for t in caller.answer.outputs] == ["z"]
    with pytest.raises(QueueFull, match="step 'b'"):
        model.submit(request(), Caller())


def two_inputs(*, optional: bool) -> ModelConfig:
    return config("b", inputs=(TensorSpec("IN", "FP32", (2,)), TensorSpec("MORE", "FP32", (2,), optional=optional)))


async def omitting(*, optional: bool, outputs: tuple[str, ...] = ("OUT",)) -> tuple[Caller, ScriptedInstance]:
    """An ensemble whose first step never gives its output MORE; the answers of its second step are up to the test."""
    steps = step("a", {"IN": "IN"}, {"OUT": "x", "MORE": "m"}), step("b", {"IN": "x", "MORE": "m"}, {"OUT": "OUT"})
    gives = tuple(TensorSpec(name, "FP32", (2,)) for name in ("OUT", "MORE"))
    configs = {"a": config("a", outputs=gives), "b": two_inputs(optional=optional)}
    workers = {name: ScriptedInstance() for name in configs}
    loop = asyncio.get_running_loop()
    models = {name: BatchingModel(configs[name], 1, {}, [workers[name]], loop) for name in configs}
    for model in models.values():
        await model.start()
    model = EnsembleModel(ensemble(*steps, outputs=outputs), 1, {}, lambda s: models[s.model_name])
    model.submit(request(), caller := Caller())
    workers["a"].answer()
    return caller, workers["b"]


async def test_optional_input_is_omitted_if_the_previous_response_lacks_it() -> None:
    caller, worker = await omitting(optional=True)
    assert [t.name for t in worker.batches[0].executions[0].request.inputs] == ["IN"]
    worker.answer()
    assert [t.name for t in caller.answer.outputs] == ["OUT"]


async def test_missing_required_input_is_named_with_its_origin() -> None:
    caller, _ = await omitting(optional=False)
    error = caller.answer
    assert error.code is Code.INVALID_ARG
    assert "'e', [request id: <id_unknown>] expected 2 inputs but got 1 inputs for model 'b'." in error.message
    assert " ('MORE' is tensor 'm', output 'MORE' of step 'a', which its response lacks)" in error.message


async def test_output_is_omitted_if_its_step_lacks_it() -> None:
    caller, worker = await omitting(optional=True, outputs=("OUT", "m"))
    worker.answer()
    assert [t.name for t in caller.answer.outputs] == ["OUT"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0, False, False)),
        ({"correlation_id": 5, "flags": SEQUENCE_START}, (5, True, False)),
        ({"correlation_id": "s", "flags": SEQUENCE_START | SEQUENCE_END}, ("s", True, True)),
    ],
)
async def test_response_has_the_sequence_position(
    fields: dict[str, Any], expected: tuple[int | str, bool, bool]
) -> None:
    model, workers = await served(DIAMOND)
    model.submit(request(**fields), caller := Caller())
    for name in "abc":
        sent = workers[name].batches[0].executions[0].request
        assert (sent.correlation_id, sent.flags) == (fields.get("correlation_id", 0), fields.get("flags", 0))
        workers[name].answer()
    keys = ("sequence_id", "sequence_start", "sequence_end")
    assert caller.answer.parameters == dict(zip(keys, expected, strict=True))


def answered(worker: ScriptedInstance, **parameters: Any) -> None:
    """Answer with parameters."""
    batch = worker.batches.pop(0)
    outputs = [Tensor.from_numpy("OUT", np.zeros(2, np.float32))]
    batch.executions[0].finish(InferResponse("m", 1, outputs, parameters=parameters))
    batch.release()


async def test_response_of_a_step_changes_the_sequence_of_later_steps() -> None:
    model, workers = await served(DIAMOND)
    model.submit(request(correlation_id=5, flags=SEQUENCE_START), caller := Caller())
    answered(workers["a"], sequence_id=9, sequence_end=True, other=1)
    for name in "bc":
        sent = workers[name].batches[0].executions[0].request
        assert (sent.correlation_id, sent.flags) == (9, SEQUENCE_END)
        workers[name].answer()
    assert caller.answer.parameters == {"sequence_id": 9, "sequence_start": False, "sequence_end": True}


@pytest.mark.parametrize("parameters", [{"sequence_id": True}, {"sequence_id": 1.5}, {"sequence_start": 1}])
async def test_sequence_position_of_a_wrong_type_is_rejected(parameters: dict[str, Any]) -> None:
    model, workers = await served(DIAMOND)
    model.submit(request(), caller := Caller())
    answered(workers["a"], **parameters)
    assert caller.answer.code is Code.INVALID_ARG
    assert f"expect parameter '{next(iter(parameters))}' of the response to be" in caller.answer.message


async def test_a_steps_error_names_ensemble_and_step_and_cancels_the_others() -> None:
    model, workers = await served(DIAMOND)
    caller = Caller()
    model.submit(request(), caller)
    workers["a"].answer()
    running = workers["c"].batches[0].executions[0]
    workers["b"].fail("no such luck")
    assert isinstance(caller.answer, ConchError)
    assert caller.answer.message == "in ensemble 'e', no such luck (step 'b')"
    assert running.cancelled
    workers["c"].answer()
    assert model.statistics.fail.count == 1


async def test_cancelling_the_request_cancels_its_steps() -> None:
    model, workers = await served(DIAMOND)
    caller = Caller()
    pending = model.submit(request(), caller)
    running = workers["a"].batches[0].executions[0]
    pending.cancel()
    assert isinstance(caller.answer, Cancelled)
    assert running.cancelled


async def test_rejection_by_a_step_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conch.server.core.scheduling.scheduled_model._NOT_READY_TIMEOUT_S", 0.001)
    model, workers = await served(DIAMOND)
    caller = Caller()
    model.submit(request(), caller)
    workers["c"].die()
    workers["a"].answer()
    async with asyncio.timeout(60):
        while not caller.finals:
            await asyncio.sleep(0.001)
    assert "in ensemble 'e', model 'c' version 1 is not ready" in caller.answer.message
    workers["b"].answer()


async def test_request_is_rejected_early_if_a_later_step_has_no_room() -> None:
    model, workers = await served(DIAMOND, max_queue_size=1)
    callers = [Caller() for _ in range(3)]
    for caller in callers[:2]:
        model.submit(request(), caller)
        workers["a"].answer()  # one executes in b and in c, the other waits there
    with pytest.raises(QueueFull, match=r"^in ensemble 'e', \[request id: me\] Exceeds max") as caught:
        model.submit(request(id="me"), callers[2])
    assert caught.value.retry_after_s is not None
    assert workers["a"].batches == []
    assert model.statistics.failures[FailureReason.REJECTED] == 1
    for name in "bbcc":
        workers[name].answer()
    assert all(isinstance(caller.answer, InferResponse) for caller in callers[:2])


async def test_admitted_request_is_exempt_from_the_bounds_of_its_steps() -> None:
    model, workers = await served(DIAMOND, max_queue_size=2)
    callers = [Caller() for _ in range(3)]
    for caller in callers:
        model.submit(request(), caller)  # one executes in a, two wait
    for _ in callers:
        workers["a"].answer()
    for name in "bbbccc":
        workers[name].answer()
    assert all(isinstance(caller.answer, InferResponse) for caller in callers)


async def test_request_holds_the_models_that_it_began_with() -> None:
    old, old_workers = await stages(DIAMOND)
    new, new_workers = await stages(DIAMOND)
    catalog = dict(old)
    model = EnsembleModel(DIAMOND, 1, {}, lambda s: catalog[s.model_name])
    caller = Caller()
    model.submit(request(), caller)
    catalog.update(new)
    drained = asyncio.gather(*(stage.drain() for stage in old.values()))
    for name in "abc":
        await asyncio.sleep(0)
        assert not drained.done()
        assert new_workers[name].batches == []
        old_workers[name].answer()
    assert isinstance(caller.answer, InferResponse)
    await drained


async def test_step_gets_the_remaining_timeout() -> None:
    model, workers = await served(DIAMOND)
    sent = request(timeout_us=60_000_000)
    sent.timeline.received -= 59 * 1_000_000_000
    model.submit(sent, Caller())
    inner = workers["a"].batches[0].executions[0].request
    assert 0 < inner.timeout_us <= 1_000_000
    late = request(timeout_us=1)
    late.timeline.received -= 1_000_000_000
    model.submit(late, Caller())
    workers["a"].answer()
    assert workers["a"].batches[0].executions[0].request.timeout_us == 1  # not 0, which would be none


async def test_an_error_of_a_backend_keeps_its_code() -> None:
    model, workers = await served(DIAMOND)
    caller = Caller()
    model.submit(request(), caller)
    workers["a"].batches[0].fail(BackendError("gone", BackendError("").code))
    assert caller.answer.code is BackendError("").code


MODELS = {
    "a": config("a"),
    "wide": config("wide", dims=(3,)),
    "ints": config("ints", inputs=(TensorSpec("IN", "INT32", (2,)),)),
    "flat": config("flat", inputs=(TensorSpec("IN", "FP32", (1, 2)),)),
    "any": config("any", dims=(-1,)),
    "batched": config("batched", max_batch_size=2),
    "batched_wide": config("batched_wide", max_batch_size=2, dims=(3,)),
}


SHAPE, DATA_TYPE = (f"in ensemble e, ensemble tensor x: inconsistent {what}:" for what in ("shape", "data type"))
FROM = "is inferred from model"
FROM_A = f"{FROM} a while"


def check(model: ModelConfig) -> None:
    check_ensemble(model, [MODELS[step.model_name] for step in model.ensemble_steps])


@pytest.mark.parametrize("second", ["a", "any", "batched"])
def test_steps_that_fit(second: str) -> None:
    check(ensemble(step("a", {"IN": "IN"}, {"OUT": "x"}), step(second, {"IN": "x"}, {"OUT": "OUT"})))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ("wide", ["model 'a', 'OUT' FP32[2]", "model 'wide', 'IN' FP32[3]", f"{SHAPE} [2] {FROM_A} [3] {FROM} wide"]),
        ("ints", ["'OUT' FP32[2]", "'IN' INT32[2]", f"{DATA_TYPE} TYPE_FP32 {FROM_A} TYPE_INT32 {FROM} ints"]),
        ("flat", [f"{SHAPE} [2] {FROM_A} [1,2] {FROM} flat", "FP32[2]", "FP32[1,2]"]),
        ("batched_wide", [f"{SHAPE} [2] {FROM_A} [-1,3] {FROM} batched_wide", "FP32[-1,3]"]),
    ],
)
def test_mismatch_names_both_sides(second: str, words: list[str]) -> None:
    steps = step("a", {"IN": "IN"}, {"OUT": "x"}), step(second, {"IN": "x"}, {"OUT": "OUT"})
    with pytest.raises(ConfigError) as caught:
        check(ensemble(*steps))
    for word in words:
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("model", "fields", "right"),
    [
        ("wide", {}, "declare the ensemble's input 'IN' with data_type: TYPE_FP32 dims: [3]"),
        ("ints", {}, "declare the ensemble's input 'IN' with data_type: TYPE_INT32 dims: [2]"),
        ("wide", {"max_batch_size": 4}, "declare the ensemble's input 'IN' with data_type: TYPE_FP32 dims: [3]"),
        ("batched", {"dims": (5,)}, "declare the ensemble's input 'IN' with data_type: TYPE_FP32 dims: [-1, 2]"),
    ],
)
def test_mismatch_at_the_ends_of_the_ensemble_has_a_remedy(model: str, fields: dict[str, object], right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(ensemble(step(model, {"IN": "IN"}, {"OUT": "OUT"}), **fields))
    assert caught.value.message.partition("; ")[2].startswith(right)


async def test_rejected_inputs_are_named_with_their_origin() -> None:
    model, workers = await served(DIAMOND)
    caller = Caller()
    model.submit(request(), caller)
    batch = workers["a"].batches.pop()
    tensor = Tensor.from_numpy("OUT", np.zeros(2, np.float64))
    batch.executions[0].finish(InferResponse("a", 1, [tensor]))
    message = caller.answer.message
    assert message.startswith("in ensemble 'e', ")
    for word in ("FP64", "FP32", "('IN' is tensor 'x', output 'OUT' of step 'a')"):
        assert word in message


def test_mapping_of_an_unknown_output() -> None:
    with pytest.raises(
        ConfigError, match="ensemble e, ensemble tensor OUT is mapped from non-existing output ZZ in model a: step 0"
    ):
        check(ensemble(step("a", {"IN": "IN"}, {"ZZ": "OUT"})))


def test_mapping_of_an_unknown_tensor() -> None:
    with pytest.raises(
        ConfigError,
        match=r"ensemble e, ensemble tensor \w+ is mapping to non-existing input ZZ in model a: step \d, whose inputs",
    ):
        check(ensemble(step("a", {"ZZ": "IN"}, {"OUT": "OUT"})))


def test_missing_mapping_of_an_input() -> None:
    with pytest.raises(ConfigError, match="in ensemble e, input IN in model a is not mapped to any ensemble tensors"):
        check(ensemble(step("a", {}, {"OUT": "OUT"})))


@pytest.mark.parametrize(("model", "warned"), [("a", True), ("lenient", False)])
def test_optional_input_that_a_step_requires_gets_a_warning(model: str, warned: bool) -> None:
    lenient = config("lenient", inputs=(TensorSpec("IN", "FP32", (2,), optional=True),))
    inputs = (TensorSpec("IN", "FP32", (2,), optional=True),)
    graph = ensemble(step(model, {"IN": "IN"}, {"OUT": "OUT"}), inputs=inputs)
    notices = list(misfit_notices(graph, [{"a": MODELS["a"], "lenient": lenient}[model]]))
    assert [("its input 'IN' is optional, but step 0" in notice) for notice in notices] == [True] * warned


def test_step_with_smaller_batches() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r"ensemble e allows maximum batch size 4, but it contains model batched which only allows maximum batch "
            r"size to be 2: .* step 0"
        ),
    ):
        check(ensemble(step("batched", {"IN": "IN"}, {"OUT": "OUT"}), max_batch_size=4))


async def test_an_input_can_be_an_output_too() -> None:
    """As in Triton, which calls the request of another output alone a deadlock."""
    steps = [step("a", {"IN": "IN"}, {"OUT": "OUT"})]
    model, workers = await served(ensemble(*steps, outputs=("IN", "OUT")))
    both, passed, made = Caller(), Caller(), Caller()
    model.submit(request(), both)
    model.submit(request(outputs=("IN",)), passed)
    model.submit(request(outputs=("OUT",)), made)
    for _ in range(2):
        workers["a"].answer()
    names = [[tensor.name for tensor in caller.answer.outputs] for caller in (both, passed, made)]
    assert names == [["IN", "OUT"], ["IN"], ["OUT"]]
