"""What the requests of a benchmark contain, as its flags say."""

from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from conch.base.command_line.flag_values import value_kind
from conch.base.command_line.flags import flag_field
from conch.base.command_line.option_types import amount, count, fraction, natural, ratio
from conch.base.durations import parse_duration
from conch.base.errors import ConchError, InvalidRequest
from conch.measure.bench.generator import ScriptSource

DEFAULT_INPUT_DATA = "random"
DEFAULT_DISTINCT = 16
DEFAULT_STRING_LENGTH = 128
DEFAULT_OUTPUT_TOKENS = 128


class InputError(ConchError):
    """Requests cannot be made as asked. The message names the input or file, and the flag that helps."""


class OpenAiRoute(StrEnum):
    """A path of the OpenAI API."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number, or numbers evenly distributed in mean ± spread."""

    mean: int
    spread: int = 0

    def __str__(self) -> str:
        return f"{self.mean}±{self.spread}" if self.spread else str(self.mean)


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Cancel this share of requests: after a time, or after a number of responses."""

    share: float  # 0 to 1
    after_ms: int | None = None
    after_responses: int | None = None


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, colon, sizes = text.rpartition(":")
    parts = sizes.split(",")
    if not colon or not name or not all(part.strip().isdecimal() for part in parts):
        raise InvalidRequest(f"--shape '{text}' is not valid: expected NAME:1,3,224,224")
    return name, tuple(int(part) for part in parts)


def _value_range(text: str) -> tuple[str, tuple[float, float]]:
    name, _, limits = text.rpartition(":")
    try:
        low, high = map(float, limits.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not name or low > high:
        raise InvalidRequest(f"--range '{text}' is not valid: expected NAME:LOW,HIGH, such as INPUT0:0,255")
    return name, (low, high)


def _cancellation(text: str) -> Cancellation:
    """Parse SHARE, SHARE@TIME or SHARE@N."""
    share, _, after = text.partition("@")
    try:
        if not after:
            return Cancellation(fraction(share), after_ms=0)
        if after.isdecimal():
            return Cancellation(fraction(share), after_responses=int(after))
        after_s = parse_duration(after)
        if after_s < 0.001:
            raise ValueError(f"{after} is shorter than 1ms, the resolution of cancellations")
        return Cancellation(fraction(share), after_ms=round(after_s * 1000))
    except (ValueError, ArgumentTypeError) as error:
        raise InvalidRequest(f"--cancel '{text}' is not valid: expected 10%@50ms or 10%@5: {error}") from None


def _route(text: str) -> OpenAiRoute:
    """Parse a path such as v1/chat/completions, or its last words."""
    words = text.strip("/").removeprefix("v1/").removesuffix("/completions") or "completions"
    try:
        return OpenAiRoute(words)
    except ValueError:
        raise InvalidRequest(
            f"--endpoint '{text}' is not supported: expected v1/chat/completions, v1/completions or v1/embeddings"
        ) from None


REQUESTS = "requests"
"""Group of the flags."""
_COUNT, _TOKENS = value_kind("N", count), value_kind("N|N±S", lambda text: Amount(*amount(text)))


@dataclass(frozen=True, slots=True)
class InputSettings:
    """What is sent, as flags say. The defaults suit every model whose shapes are fixed."""

    input_data: str = flag_field(
        DEFAULT_INPUT_DATA,
        REQUESTS,
        "JSON or folder of perf_analyzer, prompts (.txt, .jsonl), or a trace file with tensors (default: random)",
        value_kind("random|zero|FILE|DIR"),
    )
    images: str | None = flag_field(None, REQUESTS, "send the images of a folder", value_kind("DIR"))
    normalization: str = flag_field(
        "unit", REQUESTS, "of decoded images (default: unit)", value_kind("unit|signed|imagenet|none")
    )
    """For float inputs: "unit" (0 to 1), "signed" (-1 to 1), "imagenet", or "none" (0 to 255)."""
    distinct: int | None = flag_field(
        None, REQUESTS, "different requests, sent in turn (default: 16; generated prompts never repeat)", _COUNT
    )
    json_tensors: bool = flag_field(
        False, REQUESTS, "tensors in JSON over HTTP rather than as binary data", value_kind(""), bare=True
    )
    shapes: Mapping[str, tuple[int, ...]] = flag_field(
        {},
        REQUESTS,
        "shape of a variable input; repeatable",
        value_kind("NAME:1,3,224,224", _shape),
        name="shape",
        repeatable=True,
    )
    ranges: Mapping[str, tuple[float, float]] = flag_field(
        {},
        REQUESTS,
        "range of random values; repeatable",
        value_kind("NAME:LOW,HIGH", _value_range),
        name="range",
        repeatable=True,
    )
    batch_size: int = flag_field(1, REQUESTS, "batch dimension of requests (default: 1)", _COUNT, aliases=("b",))
    string_length: int = flag_field(
        DEFAULT_STRING_LENGTH, REQUESTS, "length of generated strings (default: 128)", _COUNT
    )
    route: OpenAiRoute | None = flag_field(
        None,
        REQUESTS,
        "v1/chat/completions, v1/completions or v1/embeddings",
        value_kind("PATH", _route),
        name="endpoint",
    )
    prompt_tokens: Amount | None = flag_field(None, REQUESTS, "tokens of generated prompts", _TOKENS)
    output_tokens: Amount | None = flag_field(None, REQUESTS, "max_tokens of generations", _TOKENS)
    turns: Amount | None = flag_field(None, REQUESTS, "turns of a conversation (default: 1)", _TOKENS)
    prefix_tokens: int = flag_field(0, REQUESTS, "tokens of a prefix that all prompts share", value_kind("N", natural))
    prefixes: int = flag_field(1, REQUESTS, "number of different prefixes (default: 1)", _COUNT)
    tokenizer: str | None = flag_field(None, REQUESTS, "tokenizer.json for exact token counts", value_kind("FILE"))
    """The file, or a folder with one."""
    streaming: bool = flag_field(
        True, REQUESTS, "ask language models for whole answers", value_kind(""), name="no-streaming", bare=True
    )
    sequence_length: Amount | None = flag_field(None, REQUESTS, "requests per sequence of stateful models", _TOKENS)
    cancel: Cancellation | None = flag_field(
        None,
        REQUESTS,
        "cancel a share of requests, after a time or N responses: 10%%@50ms",
        value_kind("SHARE[@TIME|@N]", _cancellation),
    )
    expect: str | None = flag_field(
        None, REQUESTS, "compare answers with those of a file, or with the first ones", value_kind("FILE|first")
    )
    tolerance: float = flag_field(
        1e-3, REQUESTS, "of floats in expected answers (default: 0.001)", value_kind("RATIO", ratio)
    )
    seed: int = 0

    @property
    def distinct_requests(self) -> int:
        """How many different requests are made before the run."""
        return DEFAULT_DISTINCT if self.distinct is None else self.distinct

    @property
    def prompts_never_repeat(self) -> bool:
        """Whether each request has a new prompt; expected answers need prompts that repeat."""
        return self.distinct is None and self.expect is None


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """The requests of a run, and what the report says of them."""

    source: ScriptSource
    description: str
    notes: tuple[str, ...] = ()
