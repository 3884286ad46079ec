"""Send the requests of an incident to a server at their recorded times, with the load generator of `conch bench`."""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog
from conch.domain.tensor import DATATYPES, Tensor, pack_bytes
from conch.measure.bench.generator import LoadPlan
from conch.measure.bench.input_settings import InputError, InputSettings
from conch.measure.bench.inputs.tensor_request import tensor_encoder
from conch.measure.bench.inputs.tensors import TensorGenerator, input_forms
from conch.measure.bench.levels import Replay, window_for
from conch.measure.bench.measure_level import measure_level
from conch.measure.bench.measurement import Measurement
from conch.measure.bench.plan import MeasuringWindow
from conch.measure.bench.prepared_request import FixedRequests, PreparedRequest
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.target import BenchTarget, Protocol, TensorMetadata
from conch.measure.incidents.stand_in import service_times

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


def refusal(log: EventLog, model: str, config: Mapping[str, Any] | None, *, stand_in: bool) -> str:
    """Return why requests to a model cannot be sent to a server, or to its stand-in; "" if they can."""
    rows = log.requests[log.requests["model"] == log.names.index(model)]
    if rows["completion_tokens"].any():
        return "it is a language model"
    if (config or {}).get("sequence_batching"):
        return "its requests are of sequences"
    if not stand_in:
        return ""
    if config is None:
        return "the bundle does not have its configuration"
    if config.get("ensemble_scheduling"):
        return "it is an ensemble"
    return "" if service_times(log, model) else "the bundle has none of its executions"


def send(
    url: str, log: EventLog, models: Sequence[str], speed: float, kept: Sequence[Mapping[str, Any]] = ()
) -> Measurement:
    """Send the requests: the inputs that the bundle kept of them, else random values of the recorded shapes.

    Returns what the client measured. Raises InvalidRequest, TargetError, ConnectionError.
    """
    rows = arrivals_of(log, models)
    whole = {int(request["number"]): tensors for request in kept if (tensors := kept_tensors(request))}
    targets = {model: discover(url, protocol=Protocol.HTTP, model=model, metrics=False) for model in models}
    indices: dict[tuple[int, ...], int] = {}
    requests: list[PreparedRequest] = []
    order = np.zeros(len(rows), np.int64)
    for place, row in enumerate(rows):
        number = int(row["number"])
        key = (number,) if number in whole else (0, int(row["model"]), int(row["shape"]), int(row["batch_size"]))
        if key not in indices:
            indices[key] = len(requests)
            target = targets[log.names[row["model"]]]
            tensors = whole.get(number) or _generated(target, log.names[row["shape"]], int(row["batch_size"]))
            requests.append(_request(len(requests), target, tensors))
        order[place] = indices[key]
    level = Replay((rows["received"] - rows["received"][0]) / 1e9 / speed, f"incident ×{speed:g}")
    pacing = replace(level.pacing(0), requests=order)
    endpoint = next(iter(targets.values())).endpoint
    plan = LoadPlan(endpoint, FixedRequests(requests), pacing, _TIMEOUT_S, has_tokens=False)
    return measure_level(plan, window_for(level, MeasuringWindow(grace_s=30.0)), level.level)


def kept_tensors(request: Mapping[str, Any]) -> list[Tensor]:
    """Return the inputs of a request that a bundle has whole; none if one is hashed, redacted or damaged."""
    try:
        return [
            Tensor(str(entry["name"]), str(entry["datatype"]), tuple(map(int, entry["shape"])), _data(entry))
            for entry in request["inputs"]
        ]
    except (KeyError, TypeError, ValueError):
        return []


def _data(entry: Mapping[str, Any]) -> bytes:
    if "base64" in entry:
        return b64decode(entry["base64"])
    if not isinstance(entry["data"], list):
        raise TypeError(entry["data"])
    elements = (b64decode(item["base64"]) if isinstance(item, dict) else item for item in entry["data"])
    return pack_bytes(elements)


def recorded_forms(shapes: str) -> list[TensorMetadata]:
    """Return the inputs that a text such as "INPUT0 FP32 [1,16]; INPUT1 BYTES [1,1]" describes, none for others."""
    forms = []
    for part in filter(None, shapes.split("; ")):
        name, _, rest = part.rpartition(" [")
        name, _, datatype = name.rpartition(" ")
        dims = rest.removesuffix("]").split(",") if rest != "]" else []
        if datatype not in DATATYPES or not all(dim.isdecimal() for dim in dims):
            return []
        forms.append(TensorMetadata(name, datatype, tuple(map(int, dims))))
    return forms


def _generated(target: BenchTarget, shapes: str, batch_size: int) -> list[Tensor]:
    """Return random inputs of recorded shapes, or where they were not recorded those of the model's metadata."""
    model = target.model
    settings = InputSettings(batch_size=max(batch_size, 1) if model.batched else 1)
    generator = TensorGenerator(settings)
    try:
        return [generator.tensor(form) for form in recorded_forms(shapes) or input_forms(model, settings)]
    except InputError:
        raise InvalidRequest(f"the shapes of requests to model '{model.name}' are not in the bundle") from None


def _request(index: int, target: BenchTarget, tensors: Sequence[Tensor]) -> PreparedRequest:
    encoder = tensor_encoder(target, InputSettings())
    return PreparedRequest(index, *encoder.encode(tensors, {}), encoder.response)
