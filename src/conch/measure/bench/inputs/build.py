"""Make the requests of a benchmark."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from conch.measure.bench.generator import FixedRequests, PreparedRequest, ScriptSource
from conch.measure.bench.input_settings import InputError, InputSettings, PreparedInputs
from conch.measure.bench.inputs.sequences import (
    DEFAULT_LENGTH,
    CancellationPattern,
    SequenceSource,
    SequenceStep,
    with_cancellations,
)
from conch.measure.bench.inputs.tensor_request import tensor_encoder
from conch.measure.bench.inputs.tensors import InputRow, InputStreams, TensorGenerator, batches, input_forms
from conch.measure.bench.targets.target import BenchTarget, Protocol, TensorMetadata

if TYPE_CHECKING:  # readers of files, and what makes prompts, are imported where they are needed
    from conch.measure.bench.inputs.language import RequestSize
    from conch.measure.bench.inputs.prompt_files import FilePrompt

# Of all distinct requests: beyond it there are fewer of them.
_MAX_BYTES = 256 * 2**20
MOONCAKE_BLOCK_TOKENS = 512
_GENERATED = ("random", "zero")
_PROMPT_LINES, _JSON_LINES = (".txt",), (".jsonl", ".ndjson")


def build_source(target: BenchTarget, settings: InputSettings) -> ScriptSource:
    """Return the requests for a target. Raises InputError, TargetError."""
    return prepare_inputs(target, settings).source


def prepare_inputs(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    """Return the requests for a target, and a description of them. Raises InputError, TargetError.

    For the OpenAI API, a few requests are sent to find out which fields the server accepts, and how it counts tokens.
    With `expect="first"`, each request is sent once.
    """
    prepared = _prepare(target, settings)
    fixed = prepared.source.fixed
    if fixed is not None and settings.expect is not None:
        from conch.measure.bench.inputs.expected_answers import add_expected_answers

        add_expected_answers(target, fixed, settings)
    elif settings.expect is not None:
        if not isinstance(prepared.source, SequenceSource):
            raise InputError(
                "--expect does not support conversations, whose prompts contain the answers before; use --turns 1"
            )
        from conch.measure.bench.inputs.expected_answers import expect_sequences

        prepared = replace(prepared, source=expect_sequences(target, prepared.source, settings))
    if fixed is None or settings.cancel is None:
        return prepared
    source = FixedRequests(with_cancellations(fixed, settings.cancel, settings.seed))
    return PreparedInputs(source, prepared.description, prepared.notes)


def _prepare(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    generated = settings.input_data in _GENERATED and settings.images is None
    if target.takes_prompts:
        prompts = None if generated else _prompts(target, settings)
        if generated or prompts is not None:
            from conch.measure.bench.inputs.language import LanguageInputs

            language = LanguageInputs(target, settings)
            return language.generated() if prompts is None else language.of_prompts(prompts)
    _refuse_language_settings(target, settings)
    if generated:
        return _generated(target, settings)
    return _of_streams(target, settings, _read_streams(target, settings))


def prepare_trace(
    target: BenchTarget,
    settings: InputSettings,
    sizes: "Sequence[RequestSize]",
    block_tokens: int = MOONCAKE_BLOCK_TOKENS,
) -> PreparedInputs:
    """Return one request for each request of a trace, in its order, so that OpenLoop.requests may be 0, 1, 2, ….

    A model that is not a language model gets generated tensors in turn, whatever the sizes. Raises InputError,
    TargetError.
    """
    if target.takes_prompts:
        from conch.measure.bench.inputs.language import LanguageInputs

        return LanguageInputs(target, settings).of_sizes(sizes, block_tokens)
    return prepare_inputs(target, settings)


def _refuse_language_settings(target: BenchTarget, settings: InputSettings) -> None:
    flags = (
        ("--prompt-tokens", settings.prompt_tokens),
        ("--output-tokens", settings.output_tokens),
        ("--prefix-tokens", settings.prefix_tokens),
        ("--turns", settings.turns),
    )
    for flag, value in flags:
        if value:
            raise InputError(f"{flag} is for language models; '{target.model.name}' is measured with tensors")


def _generated(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    """Return requests with tensors of the model's metadata."""
    forms = input_forms(target.model, settings)
    generator = TensorGenerator(settings)
    if target.model.sequences or settings.sequence_length is not None:
        steps = [SequenceStep([generator.tensor(form) for form in forms]) for _ in range(settings.distinct_requests)]
        return _sequences(target, settings, _in_lengths(steps, settings), shown_forms(forms))
    encoder = tensor_encoder(target, settings)

    def make(index: int) -> PreparedRequest:
        tensors = [generator.tensor(form) for form in forms]
        return PreparedRequest(index, *encoder.encode(tensors, {}), encoder.response)

    requests, notes = distinct_requests(make, settings.distinct_requests)
    what = f"{len(requests)} {settings.input_data} requests: {shown_forms(forms)}"
    return PreparedInputs(FixedRequests(requests), what, tuple(notes))


def _of_streams(target: BenchTarget, settings: InputSettings, streams: InputStreams) -> PreparedInputs:
    """Return requests with the tensors of a file."""
    from conch.measure.bench.inputs.expected_answers import expect_outputs

    what = f"{sum(map(len, streams.streams))} rows of {settings.images or settings.input_data}"
    grouped = [batches(rows, target.model, settings.batch_size) for rows in streams.streams]
    if streams.sequences or target.model.sequences or settings.sequence_length is not None:
        steps = [[_step(target, settings, row) for row in rows] for rows in grouped]
        if settings.sequence_length is not None or not streams.sequences:
            steps = [sequence for step in steps for sequence in _in_lengths(step, settings)]
        return _sequences(target, settings, steps, what, streams.notes)
    encoder = tensor_encoder(target, settings)
    requests = []
    for index, row in enumerate(grouped[0]):
        head, body = encoder.encode(list(row.tensors.values()), {})
        expected = expect_outputs(target, row.expected, settings.tolerance)
        requests.append(PreparedRequest(index, head, body, encoder.response, expected=expected))
    return PreparedInputs(FixedRequests(requests), what, streams.notes)


def _step(target: BenchTarget, settings: InputSettings, row: InputRow) -> SequenceStep:
    from conch.measure.bench.inputs.expected_answers import expect_outputs

    return SequenceStep(list(row.tensors.values()), expect_outputs(target, row.expected, settings.tolerance))


def _in_lengths(steps: Sequence[SequenceStep], settings: InputSettings) -> list[list[SequenceStep]]:
    """Return sequences of the given lengths, which begin at different steps."""
    rng = np.random.default_rng(settings.seed)
    length = settings.sequence_length or DEFAULT_LENGTH
    sequences = []
    for number in range(settings.distinct_requests):
        count = int(rng.integers(length.mean - length.spread, length.mean + length.spread, endpoint=True))
        sequences.append([steps[(number + at) % len(steps)] for at in range(count)])
    return sequences


def _sequences(
    target: BenchTarget,
    settings: InputSettings,
    sequences: Sequence[Sequence[SequenceStep]],
    what: str,
    notes: tuple[str, ...] = (),
) -> PreparedInputs:
    source = SequenceSource(
        sequences,
        tensor_encoder(target, settings),
        CancellationPattern(settings.cancel),
        text_ids=target.model.text_sequence_ids,
    )
    shortest, longest = min(map(len, sequences)), max(map(len, sequences))
    lengths = str(longest) if shortest == longest else f"{shortest} to {longest}"
    if settings.sequence_length is None and target.model.sequences:
        reason = f"model '{target.model.name}' has sequence_batching"
        notes = (*notes, f"{reason}: it gets sequences of {lengths} requests (--sequence-length)")
    return PreparedInputs(source, f"sequences of {lengths} requests: {what}", notes)


def _read_streams(target: BenchTarget, settings: InputSettings) -> InputStreams:
    """Read the tensors of a folder of images, a folder of files, a recording or perf_analyzer's JSON."""
    if settings.images is not None:
        from conch.measure.bench.inputs.image_files import read_images

        return read_images(target.model, settings)
    from conch.measure.bench.inputs.tensor_files import is_recording, read_folder, read_recording, read_streams

    path = _path(settings)
    if path.is_dir():
        return read_folder(path, target.model, settings)
    document = _document(path)
    if is_recording(document):
        return read_recording(str(path), document, target.model)
    return read_streams(str(path), document, target.model, settings)


def _prompts(target: BenchTarget, settings: InputSettings) -> "list[FilePrompt] | None":
    """Return the prompts of a file; None if it has tensors. Raises InputError where they cannot be sent."""
    if settings.images is not None:
        if target.protocol is Protocol.OPENAI:
            raise InputError("--images is for models with tensors, not for the OpenAI API")
        return None
    from conch.measure.bench.inputs.prompt_files import read_json_lines, read_lines, read_payloads

    path = _path(settings)
    if path.suffix in _PROMPT_LINES:
        return read_lines(path)
    if path.suffix in _JSON_LINES:
        return read_json_lines(path)
    prompts = None if path.is_dir() else read_payloads(path, _document(path))
    if prompts is None and target.protocol is Protocol.OPENAI:
        raise InputError(f"--input-data {path}: the OpenAI API needs prompts: .txt, .jsonl, or JSON with payloads")
    return prompts


def _path(settings: InputSettings) -> Path:
    path = Path(settings.input_data)
    if not path.exists():
        raise InputError(f"--input-data {path}: there is no such file or folder; or use random or zero")
    return path


def _document(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"--input-data {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"--input-data {path} is not valid JSON: {error}") from None


def shown_forms(forms: Sequence[TensorMetadata]) -> str:
    """Return the inputs as text."""
    return ", ".join(f"{form.name} {form.datatype}{list(form.shape)}" for form in forms)


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
