"""Send the requests of an incident to a server at their recorded times, with the load generator of `conch bench`."""

import secrets
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog
from conch.domain.tensor import DATATYPES, Tensor, pack_bytes
from conch.measure.bench.generator import Endpoint, FixedRequests, LoadPlan, PreparedRequest
from conch.measure.bench.input_settings import Amount, InputError, InputSettings
from conch.measure.bench.inputs.language import LanguageInputs, RequestSize
from conch.measure.bench.inputs.tensor_request import tensor_encoder
from conch.measure.bench.inputs.tensors import TensorGenerator, input_forms
from conch.measure.bench.levels import Replay, window_for
from conch.measure.bench.measure_level import measure_level
from conch.measure.bench.measurement import Measurement
from conch.measure.bench.plan import MeasuringWindow
from conch.measure.bench.targets.discover import discover
from conch.measure.bench.targets.target import BenchTarget, Protocol, TensorMetadata
from conch.measure.incidents.arrival_margins import with_margins

_TIMEOUT_S = 300.0
_NO_ID = "0" * 20  # has the length of every number
_ID_BITS = 30  # of correlation ids, which may be 32-bit integers in a model


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


def is_language_model(log: EventLog, model: str) -> bool:
    """Whether a model has generated tokens."""
    rows = log.requests[log.requests["model"] == log.names.index(model)]
    return bool(rows["completion_tokens"].any())


class LiveReplay:
    """The requests of a log, prepared for a server.

    Tensors are the inputs that the bundle kept, else random values of the recorded shapes. Language models get prompts
    of random words with the recorded number of tokens, and generate as many as they did.
    """

    def __init__(
        self,
        url: str,
        log: EventLog,
        models: Sequence[str],
        speed: float,
        kept: Sequence[Mapping[str, Any]] = (),
        *,
        for_stand_ins: bool = False,
    ) -> None:
        """Ask the server for its models, and language models a few requests more.

        `for_stand_ins` of the recorded world gives requests their recorded numbers as ids, and moves them a little away
        from the times at which recorded batches were formed.
        Raises InvalidRequest, TargetError, ConnectionError.
        """
        rows = arrivals_of(log, models)
        times = with_margins(log, rows) if for_stand_ins else rows["received"]
        order = np.argsort(times, kind="stable")
        rows, times = rows[order], times[order]
        whole = {
            request["number"]: tensors
            for request in kept
            if type(request.get("number")) is int and (tensors := kept_tensors(request))
        }
        self._requests: list[PreparedRequest] = []
        self._order = np.zeros(len(rows), np.int64)
        self._endpoint: Endpoint | None = None
        self._has_tokens = False
        self._has_ids = for_stand_ins
        for model in models:
            places = np.flatnonzero(rows["model"] == log.names.index(model))
            generates = is_language_model(log, model)
            target = discover(url, protocol=Protocol.OPENAI if generates else None, model=model, metrics=False)
            self._endpoint = target.endpoint
            self._has_tokens = self._has_tokens or generates
            if generates:
                self._add_prompts(target, rows[places], places)
            else:
                self._add_tensors(target, log, rows[places], places, whole)
        self.first_ns = int(times[0])  # of the log's clock
        self._level = Replay((times - times[0]) / 1e9 / speed, f"incident ×{speed:g}")

    def send(self, on_start: Callable[[int], None] | None = None) -> Measurement:
        """Send the requests at their times. Returns what the client measured.

        `on_start` gets when the first request will be sent, in ns of CLOCK_MONOTONIC.
        """
        assert self._endpoint is not None  # there are requests
        pacing = replace(self._level.pacing(0), requests=self._order)
        source = FixedRequests(self._requests)
        plan = LoadPlan(self._endpoint, source, pacing, _TIMEOUT_S, has_tokens=self._has_tokens, on_start=on_start)
        return measure_level(plan, window_for(self._level, MeasuringWindow(grace_s=30.0)), self._level.level)

    def _add_prompts(self, target: BenchTarget, rows: NDArray[Any], places: NDArray[Any]) -> None:
        sizes = [RequestSize(int(row["prompt_tokens"]), int(row["completion_tokens"])) for row in rows]
        prepared = LanguageInputs(target, InputSettings(output_tokens=Amount(1))).of_sizes(sizes, 1).source.fixed
        for place, request in zip(places, prepared or (), strict=True):
            self._order[place] = self._add(request)

    def _add_tensors(
        self,
        target: BenchTarget,
        log: EventLog,
        rows: NDArray[Any],
        places: NDArray[Any],
        whole: Mapping[int, list[Tensor]],
    ) -> None:
        sequences = _sequence_parameters(rows, text_ids=target.model.text_sequence_ids)
        encoder = tensor_encoder(target, InputSettings())
        templates: dict[tuple[int, ...], PreparedRequest] = {}
        for place, row, parameters in zip(places, rows, sequences, strict=True):
            number, batch_size = int(row["number"]), int(row["batch_size"])
            unique = number in whole or parameters
            key = (number,) if unique else (0, int(row["shape"]), batch_size)
            template = templates.get(key)
            if template is None:
                tensors = whole.get(number) or _generated(target, log.names[row["shape"]], batch_size)
                head, body = encoder.encode(tensors, parameters, _NO_ID if self._has_ids else "")
                template = templates[key] = PreparedRequest(-1, head, body, encoder.response)
            if self._has_ids:
                next_body = partial(_with_id, template.body, number)
                self._order[place] = self._add(replace(template, body=b"", next_body=next_body))
            else:
                if template.index < 0:
                    template.index = self._add(template)
                self._order[place] = template.index

    def _add(self, request: PreparedRequest) -> int:
        index = len(self._requests)
        self._requests.append(replace(request, index=index))
        return index


def _with_id(body: bytes, number: int) -> bytes:
    """Return the body of a request with its recorded number in the place of `_NO_ID`, which comes first in it."""
    return body.replace(_NO_ID.encode(), b"%0*d" % (len(_NO_ID), number), 1)


def _sequence_parameters(rows: NDArray[Any], *, text_ids: bool) -> list[dict[str, Any]]:
    """Return the parameters of requests: a sequence begins with its first one in the log and ends with its last."""
    known, last, which = np.unique(rows["correlation"][::-1], return_index=True, return_inverse=True)
    first_id = 1 + secrets.randbits(_ID_BITS)
    begun: set[int] = set()
    parameters = list[dict[str, Any]]()
    for place, number in enumerate(which[::-1].tolist()):
        if not known[number]:
            parameters.append({})
            continue
        identifier = first_id + number
        ends = place == len(rows) - 1 - last[number]
        id_ = f"conch-replay-{identifier}" if text_ids else identifier
        parameters.append({"sequence_id": id_, "sequence_start": number not in begun, "sequence_end": bool(ends)})
        begun.add(number)
    return parameters


def kept_tensors(request: Mapping[str, Any]) -> list[Tensor]:
    """Return the inputs of a request that a bundle has whole; none if one is hashed, redacted or damaged."""
    try:
        return [
            Tensor(str(entry["name"]), str(entry["datatype"]), tuple(map(int, entry["shape"])), _data(entry))
            for entry in request["inputs"]
        ]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
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
