"""The response cache: equality of requests, eviction, invalidation and hits."""

import asyncio
from collections import OrderedDict
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conch.base.errors import BackendError, Cancelled, FailureReason
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, InferResponse, StepRequest
from conch.domain.tensor import Tensor
from conch.server.core.catalog import Catalog
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.response_cache import ModelCache, ResponseCache, cache_key
from conch.server.core.scheduling.batching_model import BatchingModel
from conch.server.repository.namespaces import ModelId
from tests.unit.server.core.scripted import Caller, ScriptedInstance, config, dynamic, request
from tests.unit.server.core.test_ensemble_model import ensemble, step

# ── the key ──

TENSORS = st.builds(
    lambda name, datatype, shape, data: Tensor(name, datatype, shape, data),
    st.sampled_from(["a", "b", "a'", "('a',"]),
    st.sampled_from(["FP32", "INT32", "BYTES"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.binary(max_size=8),
)
SCALARS = st.booleans() | st.integers(-1, 2) | st.sampled_from([0.0, 1.0, "1", "True", "", "x"])
REQUESTS = st.builds(
    lambda inputs, outputs, parameters, correlation_id, flags: InferRequest(
        "m", inputs, outputs=outputs, parameters=parameters, correlation_id=correlation_id, flags=flags
    ),
    st.lists(TENSORS, max_size=2, unique_by=lambda tensor: tensor.name),
    st.lists(st.sampled_from("xy"), max_size=2).map(tuple),
    st.dictionaries(st.sampled_from("pq"), SCALARS, max_size=2),
    st.sampled_from([0, 1, "1"]),
    st.sampled_from([0, 1]),
)


def meaning(sent: InferRequest) -> object:
    """What must be equal for two requests to be equal, without digests."""
    return (
        {tensor.name: (tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in sent.inputs},
        sent.outputs,
        {name: (type(value), value) for name, value in sent.parameters.items()},
        (type(sent.correlation_id), sent.correlation_id),
        sent.flags,
    )


@given(REQUESTS, REQUESTS)
def test_keys_are_equal_if_and_only_if_the_requests_are(asked: InferRequest, other: InferRequest) -> None:
    assert (cache_key(b"1", asked) == cache_key(b"1", other)) == (meaning(asked) == meaning(other))


@given(REQUESTS)
def test_order_id_priority_and_timeout_do_not_count(sent: InferRequest) -> None:
    again = InferRequest(
        "m",
        sent.inputs[::-1],
        id="other",
        outputs=sent.outputs,
        parameters=dict(reversed(sent.parameters.items())),
        correlation_id=sent.correlation_id,
        flags=sent.flags,
        priority=7,
        timeout_us=9,
    )
    assert cache_key(b"1", again) == cache_key(b"1", sent)
    assert cache_key(b"2", again) != cache_key(b"1", sent)


def test_shape_and_datatype_count() -> None:
    data = bytes(24)
    forms = [("FP32", (2, 3)), ("FP32", (3, 2)), ("INT32", (3, 2)), ("FP32", (6,))]
    keys = {cache_key(b"", InferRequest("m", [Tensor("IN", datatype, shape, data)])) for datatype, shape in forms}
    assert len(keys) == len(forms)


# ── entries ──


def response(size: int) -> InferResponse:
    return InferResponse("m", 1, [Tensor("OUT", "UINT8", (size,), bytearray(size))])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "find", "find", "forget"]),
        st.integers(0, 5),
        st.sampled_from([500, 1000, 2000, 7000]),
    ),
    max_size=60,
)


@given(st.integers(3000, 6000), STEPS)
def test_the_cache_is_a_bounded_lru(size: int, steps: list[tuple[str, int, int]]) -> None:
    cache = ResponseCache(size)
    probe = ResponseCache(1 << 30)
    probe.insert(b"", response(0), set())
    overhead = probe.statistics.used
    groups: list[set[bytes]] = [set(), set()]
    model: OrderedDict[bytes, int] = OrderedDict()
    for what, number, nbytes in steps:
        key = b"%d" % number
        group = groups[number % 2]
        if what == "insert":
            cache.insert(key, response(nbytes), group)
            model.pop(key, None)
            if nbytes + overhead <= size:
                while sum(model.values()) + nbytes + overhead > size:
                    model.popitem(last=False)
                model[key] = nbytes + overhead
        elif what == "find":
            entry = cache.find(key)
            assert (entry is not None) == (key in model)
            if entry is not None:
                model.move_to_end(key)
                assert entry.outputs[0].nbytes == model[key] - overhead
        else:
            cache.forget(group)
            for key in [key for key in model if int(key) % 2 == number % 2]:
                del model[key]
        statistics = cache.statistics
        assert statistics.used == sum(model.values()) <= size
        assert len(cache) == statistics.entries == len(model)
        assert groups[0] | groups[1] == set(model)


def test_least_recently_used_entry_is_evicted() -> None:
    cache, group = ResponseCache(5000), set[bytes]()
    for key in (b"old", b"used", b"new"):
        cache.insert(key, response(700), group)
    cache.find(b"old")
    cache.insert(b"newest", response(700), group)
    assert group == {b"old", b"new", b"newest"}
    assert cache.statistics.evictions == 1


def test_entries_are_copies() -> None:
    cache = ResponseCache(10_000)
    data = bytearray(b"abcd")
    cache.insert(b"k", InferResponse("m", 1, [Tensor("OUT", "UINT8", (4,), memoryview(data))]), set())
    data[:] = b"xxxx"
    entry = cache.find(b"k")
    assert entry is not None
    assert entry.outputs[0].data == b"abcd"


# ── a model with a cache ──


async def cached(
    model_config: ModelConfig | None = None, *, instances: int = 1, size: int = 1 << 20
) -> tuple[BatchingModel, list[ScriptedInstance], ResponseCache]:
    cache = ResponseCache(size)
    workers = [ScriptedInstance() for _ in range(instances)]
    model = BatchingModel(model_config or config(), 1, {}, workers, asyncio.get_running_loop())
    model.cache = ModelCache(cache, model.statistics)
    await model.start()
    return model, workers, cache


async def ask(model: BatchingModel, worker: ScriptedInstance | None = None, **fields: object) -> object:
    """Return the response to a request; `worker` answers it, None for a hit."""
    caller = Caller()
    model.submit(request(*fields.pop("shape", ()), **fields), caller)
    if worker is None:
        await asyncio.sleep(0)
    else:
        worker.answer()
    return caller.answer


async def test_hit_needs_no_instance_and_has_the_id_of_its_request() -> None:
    model, (worker,), _ = await cached()
    first = await ask(model, worker, id="first")
    worker.die()  # not even a ready instance is needed
    second = await ask(model, id="second")
    assert isinstance(first, InferResponse)
    assert isinstance(second, InferResponse)
    assert (first.id, second.id) == ("first", "second")
    assert [(t.name, bytes(t.data)) for t in second.outputs] == [(t.name, bytes(t.data)) for t in first.outputs]
    statistics = model.statistics
    assert (statistics.success.count, statistics.queue.count, statistics.cache_hit.count) == (2, 2, 1)
    assert (statistics.inference_count, statistics.execution_count, statistics.cache_miss.count) == (1, 1, 1)
    assert statistics.compute_infer.count == 1


async def test_changes_to_a_response_do_not_reach_the_cache() -> None:
    model, (worker,), _ = await cached()
    await ask(model, worker)
    answer = await ask(model)
    assert isinstance(answer, InferResponse)
    answer.outputs.clear()
    answer.parameters["p"] = 1
    again = await ask(model)
    assert isinstance(again, InferResponse)
    assert (len(again.outputs), again.parameters) == (1, {})


async def test_errors_and_cancelled_requests_are_not_stored() -> None:
    model, (worker,), cache = await cached()
    caller = Caller()
    model.submit(request(), caller)
    worker.fail()
    assert isinstance(caller.answer, BackendError)
    model.submit(request(), Caller()).cancel()
    worker.answer()
    assert len(cache) == 0
    assert isinstance(await ask(model, worker), InferResponse)
    assert model.statistics.cache_miss.count == 3


async def test_step_of_an_ensemble_can_be_cancelled_before_its_hit() -> None:
    model, (worker,), _ = await cached()
    await ask(model, worker)
    caller = Caller()
    model.submit(StepRequest("m", request().inputs), caller).cancel()
    await asyncio.sleep(0)
    assert isinstance(caller.answer, Cancelled)
    assert model.statistics.failures[FailureReason.CANCELED] == 1


async def test_concurrent_equal_requests_are_each_executed() -> None:
    model, workers, cache = await cached(instances=2)
    callers = [Caller(), Caller()]
    for caller in callers:
        model.submit(request(), caller)
    for worker in workers:
        worker.answer()
    assert all(isinstance(caller.answer, InferResponse) for caller in callers)
    assert len(cache) == 1


async def test_response_larger_than_the_cache_is_not_stored() -> None:
    model, (worker,), cache = await cached(dynamic(64, preferred_batch_sizes=(1,)), size=1024)
    assert isinstance(await ask(model, worker, shape=(64, 2)), InferResponse)
    assert len(cache) == 0
    assert isinstance(await ask(model, worker, shape=(64, 2)), InferResponse)


async def test_hit_keeps_its_place_with_preserve_ordering() -> None:
    model, (worker,), _ = await cached(dynamic(1, preserve_ordering=True))
    await ask(model, worker, shape=(1, 2))
    slow, quick = Caller(), Caller()
    model.submit(request(1, 2, parameters={"other": 1}), slow)
    model.submit(request(1, 2), quick)
    await asyncio.sleep(0)
    assert (slow.finals, quick.finals) == (0, 0)
    worker.answer()
    assert (slow.finals, quick.finals) == (1, 1)


async def test_several_responses_are_not_stored() -> None:
    model, (worker,), cache = await cached()
    caller = Caller()
    model.submit(request(), caller)
    ((execution,),) = [batch.executions for batch in worker.batches]
    execution.send(InferResponse("m", 1, []))
    worker.answer()
    assert len(caller.answers) == 2
    assert len(cache) == 0


@pytest.mark.parametrize("close", [True, False])
async def test_response_from_before_a_change_is_not_stored(close: bool) -> None:
    model, (worker,), cache = await cached()
    assert model.cache is not None
    model.submit(request(), Caller())
    if close:
        model.cache.close()
    else:
        model.cache.forget()
    worker.answer()
    assert len(cache) == 0
    await ask(model, worker)
    assert len(cache) == (0 if close else 1)


async def test_reload_clears_the_responses_of_the_old_version() -> None:
    catalog = Catalog()
    old, (worker,), cache = await cached()
    catalog.publish(ModelId("", "m"), {1: old})
    await ask(old, worker)
    new = BatchingModel(config(), 1, {}, [worker], asyncio.get_running_loop())
    new.cache = ModelCache(cache, new.statistics)
    await new.start()
    catalog.publish(ModelId("", "m"), {1: new})
    assert len(cache) == 0
    model = catalog.find("m", None)
    assert isinstance(model, BatchingModel)
    await ask(model, worker)  # executed, or `answer` would have nothing to answer


async def test_ensemble_caches_until_the_model_of_a_step_changes() -> None:
    catalog = Catalog()
    cache = ResponseCache(1 << 20)
    inner, (worker,), _ = await cached(config("inner"))
    catalog.publish(ModelId("", "inner"), {1: inner})
    for name, below in (("middle", "inner"), ("outer", "middle")):
        model_config = replace(ensemble(step(below, {"IN": "IN"}, {"OUT": "OUT"})), name=name)
        model = EnsembleModel(model_config, 1, {}, partial(catalog.of_step, ""))
        model.cache = ModelCache(cache, model.statistics)
        catalog.publish(ModelId("", name), {1: model})
    outer = catalog.find("outer", None)

    async def sent() -> int:
        """Ask the outermost and return how many executions that took."""
        caller, before = Caller(), inner.statistics.execution_count
        outer.submit(request(name="outer"), caller)
        while not caller.finals:
            if worker.batches:
                worker.answer()
            await asyncio.sleep(0)
        assert isinstance(caller.answer, InferResponse)
        assert caller.answer.model_name == "outer"
        return inner.statistics.execution_count - before

    assert await sent() == 1
    assert len(cache) == 2
    assert await sent() == 0
    assert outer.statistics.cache_hit.count == 1
    catalog.publish(ModelId("", "inner"), {1: inner})
    assert len(cache) == 0
    # The inner model kept what it knows: the step is a hit, and the ensemble is answered all the same.
    assert await sent() == 0
    assert inner.statistics.cache_hit.count == 1
