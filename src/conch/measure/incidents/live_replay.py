"""Send the requests of an incident to a server at their recorded times, with the load generator of `conch bench`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog
from conch.measure.bench.generator import LoadPlan
from conch.measure.bench.input_settings import InputSettings
from conch.measure.bench.inputs.tensor_request import tensor_encoder
from conch.measure.bench.inputs.tensors import TensorGenerator, input_forms
from conch.measure.bench.levels import Replay, window_for
from conch.measure.bench.measure_level import measure_level
from conch.measure.bench.plan import MeasuringWindow
from conch.measure.bench.prepared_request import FixedRequests, PreparedRequest
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.target import BenchTarget, Protocol

_TIMEOUT_S = 300.0


def arrivals_of(log: EventLog, models: Sequence[str]) -> NDArray[Any]:
    """Return the rows of clients' requests to models, in the order of their arrival. Raises InvalidRequest for none."""
    numbers = [log.names.index(model) for model in models if model in log.names]
    rows = log.requests
    rows = rows[np.isin(rows["model"], numbers) & (rows["parent"] == 0) & (rows["received"] > 0)]
    if not len(rows):
        raise InvalidRequest("the bundle has no request of a client to replay")
    ordered: NDArray[Any] = rows[np.argsort(rows["received"], kind="stable")]
    return ordered


def client_models(log: EventLog) -> list[str]:
    """Return the models that clients called, those with the most requests first."""
    rows = log.requests[log.requests["parent"] == 0]
    numbers, counts = np.unique(rows["model"], return_counts=True)
    return [log.names[number] for number in numbers[np.argsort(-counts, kind="stable")]]


def send(url: str, log: EventLog, models: Sequence[str], speed: float, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Send the requests, with generated inputs of the recorded batch sizes.

    `shapes` are those of inputs with variable dimensions. Raises InvalidRequest, TargetError, ConnectionError.
    """
    rows = arrivals_of(log, models)
    targets = {model: discover(url, protocol=Protocol.HTTP, model=model, metrics=False) for model in models}
    kinds, indices = np.unique(
        np.stack([rows["model"].astype(np.int64), np.maximum(rows["batch_size"], 1).astype(np.int64)]),
        axis=1,
        return_inverse=True,
    )
    requests = [
        _request(index, targets[log.names[model]], int(size), shapes)
        for index, (model, size) in enumerate(kinds.T.tolist())
    ]
    times_s = (rows["received"] - rows["received"][0]) / 1e9 / speed
    level = Replay(times_s, f"incident ×{speed:g}")
    pacing = replace(level.pacing(0), requests=indices.reshape(-1).astype(np.int64))
    plan = LoadPlan(
        next(iter(targets.values())).endpoint, FixedRequests(requests), pacing, _TIMEOUT_S, has_tokens=False
    )
    measure_level(plan, window_for(level, MeasuringWindow(grace_s=30.0)), level.level)


def _request(index: int, target: BenchTarget, size: int, shapes: Mapping[str, tuple[int, ...]]) -> PreparedRequest:
    model = target.model
    if model.sequences or target.takes_prompts:
        raise InvalidRequest(f"model '{model.name}' cannot be replayed: it has sequences or is a language model")
    names = {form.name for form in model.inputs}
    chosen = {name: shape for name, shape in shapes.items() if name in names}
    settings = InputSettings(batch_size=size if model.batched else 1, shapes=chosen)
    generator = TensorGenerator(settings)
    encoder = tensor_encoder(target, settings)
    tensors = [generator.tensor(form) for form in input_forms(model, settings)]
    return PreparedRequest(index, *encoder.encode(tensors, {}), encoder.response)
