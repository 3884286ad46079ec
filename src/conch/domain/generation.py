# Compiled by mypyc in wheels.
"""Requests to engines of language models, sampling parameters, and the deltas and usage that engines return.

Names of parameters are vLLM's (`SamplingParams`), which the OpenAI API and Triton's vLLM backend use as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final, Literal, Protocol, TypeAlias

from conch.base.errors import ConchError, InvalidParameter
from conch.domain.llm.images import EncodedImage
from conch.domain.request import Span, Timeline, TokenMeter

# Bounds of parameters that cost memory per request.
MAX_N: Final = 128
MAX_STOPS: Final = 64
MAX_LOGPROBS: Final = 20
MAX_STOP_CHARACTERS: Final = 1000
MAX_BIASES: Final = 65_536  # of logit_bias, of stop_token_ids and of allowed_token_ids
MAX_BAD_WORDS: Final = 1024
MAX_CACHE_SALT_CHARACTERS: Final = 1024
MAX_STRUCTURE_CHARACTERS: Final = 2**20
MAX_COPIED_PARAMS: Final = 2**22  # `SamplingParams.size` of all requests of one call


class FinishReason(Enum):
    """Why a sequence has ended, by the names of the OpenAI API and vLLM."""

    STOP = "stop"  # end-of-sequence token, stop string or stop token
    LENGTH = "length"  # max_tokens, or the end of the context
    ABORT = "abort"  # cancelled by the caller


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """A constraint on the generated text: a JSON schema, any JSON object, an expression, a grammar or a choice."""

    kind: Literal["json", "json_object", "regex", "grammar", "choice"]
    value: str = ""  # the schema, expression or grammar; the texts of a choice as a JSON list


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling and stop conditions. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 exclude no token.

    `logprobs`: None for none, 0 for the sampled token only, k for the k most likely tokens too.
    """

    n: int = 1
    max_tokens: int | None = None  # None: until the context is full
    fit_max_tokens: bool = False  # reduce max_tokens to what the context leaves, instead of a refusal
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # as `logprobs`, of the prompt's tokens
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[str, ...] = ()
    truncate_prompt_tokens: int | None = None  # tokens of the prompt to keep; -1: as many as fit into the context
    truncation_side: str = "left"  # "left" keeps the prompt's last tokens, "right" its first
    cache_salt: str = ""  # only requests with the same salt share cached prefixes
    structured: StructuredOutput | None = None

    def check(self) -> None:
        """Raise InvalidParameter for the first parameter that is invalid."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # also for NaN
                raise InvalidParameter(name, f"{name} must be {_between(low, high, value)}, got {value}")
        if not 0 < self.top_p <= 1:
            raise InvalidParameter("top_p", f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 < self.repetition_penalty <= 10:
            text = f"repetition_penalty must be above 0 and at most 10, got {self.repetition_penalty}"
            raise InvalidParameter("repetition_penalty", text)
        if self.truncate_prompt_tokens == 0:
            text = "truncate_prompt_tokens must be -1 or at least 1, got 0"
            raise InvalidParameter("truncate_prompt_tokens", text)
        if self.truncation_side not in ("left", "right"):
            text = f"truncation_side must be left or right, got '{self.truncation_side}'"
            raise InvalidParameter("truncation_side", text)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            text = f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})"
            raise InvalidParameter("min_tokens", text)
        if len(self.stop) > MAX_STOPS:
            raise InvalidParameter("stop", f"stop may hold {MAX_STOPS} strings at most, got {len(self.stop)}")
        if "" in self.stop:
            raise InvalidParameter("stop", "stop must not hold an empty string")
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Bound the work per step, and the size of the message to the engine."""
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_CHARACTERS:
            text = f"a stop string may have {MAX_STOP_CHARACTERS} characters at most, got {longest}"
            raise InvalidParameter("stop", text)
        longest = max(map(len, (self.cache_salt, *self.bad_words)))
        if longest > MAX_CACHE_SALT_CHARACTERS:
            name = "cache_salt" if len(self.cache_salt) == longest else "bad_words"
            text = f"{name} may have {MAX_CACHE_SALT_CHARACTERS} characters at most, got {longest}"
            raise InvalidParameter(name, text)
        if len(self.bad_words) > MAX_BAD_WORDS:
            text = f"bad_words may hold {MAX_BAD_WORDS} texts at most, got {len(self.bad_words)}"
            raise InvalidParameter("bad_words", text)
        for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
            count = len(getattr(self, name))
            if count > MAX_BIASES:
                raise InvalidParameter(name, f"{name} may hold {MAX_BIASES} tokens at most, got {count}")
        if self.structured is not None and len(self.structured.value) > MAX_STRUCTURE_CHARACTERS:
            size = len(self.structured.value)
            text = f"the format of the output may have {MAX_STRUCTURE_CHARACTERS} characters at most, got {size}"
            raise InvalidParameter("response_format", text)

    @property
    def size(self) -> int:
        """About the bytes of the parameters in a message to an engine."""
        tokens = len(self.logit_bias) + len(self.stop_token_ids) + len(self.allowed_token_ids)
        structure = len(self.structured.value) if self.structured is not None else 0
        return 4 * tokens + sum(map(len, (*self.stop, *self.bad_words))) + structure

    def non_defaults(self) -> list[str]:
        """Return the names of parameters that differ from their defaults: an engine must support or refuse them."""
        return [name for name, default in _DEFAULTS.items() if getattr(self, name) != default]


_RANGES: Final[tuple[tuple[str, float, float], ...]] = (
    ("n", 1, MAX_N),
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("temperature", 0, 100),
    ("top_k", -1, 2**31 - 1),
    ("min_p", 0, 1),
    ("seed", -(2**63), 2**64 - 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
    ("truncate_prompt_tokens", -1, 2**31 - 1),
)
_DEFAULTS: Final = {field.name: getattr(SamplingParams(), field.name) for field in fields(SamplingParams)}


def _between(low: float, high: float, value: float) -> str:
    """Describe a range; omit an upper bound of 2**31 - 1 and above unless the value exceeds it."""
    return f"at least {low:g}" if high >= 2**31 - 1 and value < low else f"between {low:g} and {high:.20g}"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token and the natural logarithm of its probability."""

    token_id: int
    text: str
    logprob: float
    rank: int = 0  # among all tokens, 1 for the most likely; 0 if the engine does not report it


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The prompt of a request as the engine has tokenized and truncated it.

    With `return_prompt` "count", `token_ids` is a range of their number; with "text", it has `text` and `pieces`, the
    text of each token; with `prompt_logprobs` it has `logprobs`, an entry for each token, the first of which is empty.
    """

    token_ids: Sequence[int]
    text: str = ""
    pieces: Sequence[str] = ()
    logprobs: Sequence[Sequence[TokenLogprob]] = ()
    cut_tokens: int = 0  # by truncate_prompt_tokens


class Delta:
    """The tokens that one step added to one sequence of a request, which is the sequence's number below `n`.

    `text` may be empty: part of a character, or held back as the possible start of a stop string. The last delta of a
    sequence has its `finish_reason`, and as `stop_reason` the stop string or token that ended it. `logprobs` has an
    entry for each token: the sampled one first, then the most likely. `prompt` is in the first delta if requested.

    One is made for each token of each stream: an ordinary class takes a tenth of the time of a dataclass if compiled.
    """

    __slots__ = ("finish_reason", "index", "logprobs", "prompt", "stop_reason", "text", "token_ids")

    def __init__(
        self,
        index: int,
        text: str,
        token_ids: Sequence[int] = (),
        finish_reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
        logprobs: Sequence[Sequence[TokenLogprob]] = (),
        prompt: PromptTokens | None = None,
    ) -> None:
        self.index = index
        self.text = text
        self.token_ids = token_ids
        self.finish_reason = finish_reason
        self.stop_reason = stop_reason
        self.logprobs = logprobs
        self.prompt = prompt

    def __repr__(self) -> str:
        return f"Delta({self.index}, {self.text!r}, {self.token_ids}, {self.finish_reason})"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, of all its sequences."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt, from the prefix cache
    # When the engine scheduled the request first, monotonic ns; 0 if it does not report it.
    scheduled: int = field(default=0, compare=False)
    cut_tokens: int = 0  # of the prompt, by truncate_prompt_tokens


@dataclass(slots=True, kw_only=True)
class GenerationRequest:
    """One prompt for one model, as token ids or as a text for the engine's tokenizer.

    The prompt has a placeholder for each of the `images`.
    """

    id: str
    model_name: str
    prompt: str | Sequence[int]
    params: SamplingParams
    version: int | None = None
    adapter: str = ""  # name of a LoRA adapter
    priority: int = 0  # lower values first; engines without priorities refuse other values than 0
    add_special_tokens: bool = True  # False for the output of a chat template, which contains them
    return_prompt: Literal["", "count", "ids", "text"] = ""  # whether the first delta has the prompt, and which parts
    prompt_only: bool = False  # return the prompt without generating
    images: Sequence[EncodedImage] = ()
    timeline: Timeline = field(default_factory=Timeline)
    span: Span | None = None  # of the trace
    meter: TokenMeter | None = None  # counts its tokens
    number: int = 0  # in the event log, set when it is admitted
    parent: int = 0  # number of the request on whose behalf it is made
    client: str = ""  # in whose turn work before the generation is done, such as compiling a grammar

    def __post_init__(self) -> None:
        """Return at least the prompt's size where nothing is generated: engines answer with the prompt alone."""
        if self.prompt_only and not self.return_prompt:
            self.return_prompt = "count"


# Callback for the deltas of a request, on the event loop: called with (deltas, None) zero or more times, then exactly
# once with the last deltas and either the usage or an error. It must not raise, nor block.
DeltaCallback: TypeAlias = Callable[[Sequence[Delta], Usage | ConchError | None], None]


class Generation(Protocol):
    """A request that an engine has accepted."""

    def abort(self) -> None:
        """End the request with Cancelled, if it has not ended."""


class FinishableGeneration(Generation, Protocol):
    """A generation that its caller may end early, as if the model had ended it."""

    def finish(self) -> None:
        """End the request, of one sequence, with what it has generated.

        The usage has the prompt's tokens if the request returns the prompt.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Properties of a loaded engine and its model."""

    engine: str  # "vllm", "openvino_genai" …
    context_length: int  # tokens of prompt and completion together
    max_running: int  # sequences that run concurrently
    device: str = ""  # where it computes: CPU, GPU 0 … "" if the engine does not report it
    kv_cache_bytes: int = 0  # maximum; 0 if the engine does not report it
    kv_cache_taken: bool = False  # whether it is allocated at load, not on demand
    kv_cache_tokens: int = 0
    kv_block_size: int = 0  # tokens
    prefix_caching: bool = False
    gpu_memory_share: float = 0.0  # configured share of a GPU's memory, if any
    chat_template: str = ""  # Jinja, "" for none
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token … for the template
    # What stands in a prompt for the first image of a request, the second and so on; none for a model of texts.
    image_placeholders: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    max_adapters: int = 0  # that one batch may use; 0 if the engine takes none at run time
    # Names of `SamplingParams`; others are refused unless they have their defaults.
    supported_params: frozenset[str] = frozenset()
    max_logprobs: int = 0
    priorities: bool = False


@dataclass(slots=True)
class EngineLoad:
    """Load of an engine as of its last step. Counters only grow."""

    stopped: bool = False  # stopped until the next request
    running: int = 0
    waiting: int = 0
    kv_cache_usage: float = 0.0  # 0 to 1
    prefix_cache_queries: int = 0  # tokens looked up
    prefix_cache_hits: int = 0
    preemptions: int = 0
    # Called after each step with events: when it began and ended (monotonic ns), CPU time and wait of its thread (ns),
    # and how many tokens were generated.
    on_step: Callable[[int, int, int, int, int], None] | None = None
