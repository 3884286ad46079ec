"""Make the requests of a benchmark."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from conch.bench.inputs.openai_request import OpenAiEncoder, try_server
from conch.bench.inputs.prompts import PromptWriter
from conch.bench.inputs.settings import InputSettings
from conch.bench.inputs.tensor_request import fixed_parameters, tensor_encoder
from conch.bench.inputs.tensors import TensorGenerator, input_forms
from conch.bench.prepared_request import FixedRequests, PreparedRequest, ScriptSource
from conch.bench.targets.target import BenchTarget, Protocol

# Of all distinct requests: beyond it there are fewer of them.
_MAX_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """The requests of a run, and what the report says of them."""

    source: ScriptSource
    description: str
    notes: tuple[str, ...] = ()


def build_source(target: BenchTarget, settings: InputSettings) -> ScriptSource:
    """Return the requests for a target. Raises InputError, TargetError."""
    return prepare_inputs(target, settings).source


def prepare_inputs(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    """Return the requests for a target, and a description of them. Raises InputError, TargetError.

    For the OpenAI API, a few requests are sent to find out which fields the server accepts.
    """
    if target.protocol is Protocol.OPENAI:
        return _openai(target, settings)
    return _tensors(target, settings)


def _tensors(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    forms = input_forms(target.model, settings)
    generator = TensorGenerator(settings)
    encoder = tensor_encoder(target, settings)
    parameters = fixed_parameters(settings)

    def make(index: int) -> PreparedRequest:
        tensors = [generator.tensor(form) for form in forms]
        return PreparedRequest(index, *encoder.encode(tensors, parameters), encoder.response)

    requests, notes = distinct_requests(make, settings.distinct)
    shapes = ", ".join(f"{form.name} {form.datatype}{list(form.shape)}" for form in forms)
    return PreparedInputs(
        FixedRequests(requests), f"{len(requests)} {settings.input_data} requests: {shapes}", tuple(notes)
    )


def distinct_requests(make: Callable[[int], PreparedRequest], count: int) -> tuple[list[PreparedRequest], list[str]]:
    """Return up to `count` requests, fewer if they are large, and a note then."""
    requests: list[PreparedRequest] = []
    size = 0
    for index in range(count):
        requests.append(make(index))
        size += len(requests[-1].body)
        if size > _MAX_BYTES and index + 1 < count:
            kept = len(requests)
            return requests, [f"{kept} distinct requests instead of {count}: they have {size / 2**20:.0f} MiB"]
    return requests, []


def _openai(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    form = try_server(target, settings)
    encoder = OpenAiEncoder(target, settings, form)
    rng = np.random.default_rng(settings.seed)
    writer = PromptWriter(rng)

    def make(index: int) -> PreparedRequest:
        return PreparedRequest(index, *encoder.encode(writer.text(), None), encoder.response)

    requests, notes = distinct_requests(make, settings.distinct)
    return PreparedInputs(FixedRequests(requests), f"{len(requests)} prompts", (*form.notes, *notes))
