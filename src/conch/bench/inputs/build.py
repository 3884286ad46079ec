"""Make the requests of a benchmark."""

from collections.abc import Callable, Sequence

from conch.bench.inputs.cancellations import CancellationPattern, with_cancellations
from conch.bench.inputs.language import LanguageInputs, RequestSize
from conch.bench.inputs.prompts import PromptWriter
from conch.bench.inputs.sequences import DEFAULT_LENGTH, SequenceSource, SequenceStep
from conch.bench.inputs.settings import InputError, InputSettings, PreparedInputs
from conch.bench.inputs.tensor_request import fixed_parameters, tensor_encoder
from conch.bench.inputs.tensors import InputForm, TensorGenerator, input_forms
from conch.bench.inputs.vocabulary import assumed_vocabulary
from conch.bench.prepared_request import FixedRequests, PreparedRequest, ScriptSource
from conch.bench.targets.target import BenchTarget, ModelKind, Protocol

# Of all distinct requests: beyond it there are fewer of them.
_MAX_BYTES = 256 * 2**20
MOONCAKE_BLOCK_TOKENS = 512


def build_source(target: BenchTarget, settings: InputSettings) -> ScriptSource:
    """Return the requests for a target. Raises InputError, TargetError."""
    return prepare_inputs(target, settings).source


def prepare_inputs(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    """Return the requests for a target, and a description of them. Raises InputError, TargetError.

    For the OpenAI API, a few requests are sent to find out which fields the server accepts, and how it counts tokens.
    """
    if target.protocol is Protocol.OPENAI or target.model.kind is ModelKind.LANGUAGE:
        with LanguageInputs(target, settings) as language:
            return language.generated()
    _refuse_language_settings(target, settings)
    if target.model.sequences or settings.sequence_length is not None:
        return _sequences(target, settings)
    return _tensors(target, settings)


def prepare_trace(
    target: BenchTarget,
    settings: InputSettings,
    sizes: Sequence[RequestSize],
    block_tokens: int = MOONCAKE_BLOCK_TOKENS,
) -> PreparedInputs:
    """Return one request for each request of a trace, in its order, so that OpenLoop.requests may be 0, 1, 2, ….

    A model that is not a language model gets generated tensors, whatever the sizes. Raises InputError, TargetError.
    """
    if target.protocol is Protocol.OPENAI or target.model.kind is ModelKind.LANGUAGE:
        with LanguageInputs(target, settings) as language:
            return language.of_sizes(sizes, block_tokens)
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


def _tensors(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    forms = input_forms(target.model, settings)
    generator = TensorGenerator(settings)
    encoder = tensor_encoder(target, settings)
    parameters = fixed_parameters(settings)

    def make(index: int) -> PreparedRequest:
        tensors = [generator.tensor(form) for form in forms]
        return PreparedRequest(index, *encoder.encode(tensors, parameters), encoder.response)

    requests, notes = distinct_requests(make, settings.distinct)
    marked = with_cancellations(requests, settings.cancel, settings.seed)
    what = f"{len(requests)} {settings.input_data} requests: {shown_forms(forms)}"
    return PreparedInputs(FixedRequests(marked), what, tuple(notes))


def _sequences(target: BenchTarget, settings: InputSettings) -> PreparedInputs:
    forms = input_forms(target.model, settings)
    generator = TensorGenerator(settings)
    writer = PromptWriter(assumed_vocabulary(), settings.seed)
    length = settings.sequence_length or DEFAULT_LENGTH
    steps = [SequenceStep([generator.tensor(form) for form in forms]) for _ in range(settings.distinct)]
    sequences = []
    for number in range(settings.distinct):
        count = writer.amount(length)
        sequences.append([steps[(number + at) % len(steps)] for at in range(count)])
    source = SequenceSource(
        sequences,
        tensor_encoder(target, settings),
        fixed_parameters(settings),
        CancellationPattern(settings.cancel),
        text_ids=target.model.text_sequence_ids,
    )
    return PreparedInputs(
        source, f"sequences of {length} requests: {shown_forms(forms)}", sequence_notes(target, settings)
    )


def sequence_notes(target: BenchTarget, settings: InputSettings) -> tuple[str, ...]:
    """Return what the report says of sequences that were not asked for."""
    if settings.sequence_length is not None or not target.model.sequences:
        return ()
    noticed = f"model '{target.model.name}' has sequence_batching: requests are sent in sequences of {DEFAULT_LENGTH}"
    return (f"{noticed} (--sequence-length)",)


def shown_forms(forms: Sequence[InputForm]) -> str:
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
