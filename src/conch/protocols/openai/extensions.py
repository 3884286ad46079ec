"""vLLM's extensions of the OpenAI API that are not sampling parameters.

Clients written for vLLM send defaults explicitly. Values without an effect are accepted, others are refused.

Source: `CompletionRequest` and `ChatCompletionRequest` of vLLM 0.32, and fields of older releases.
"""

from collections.abc import Callable
from typing import Any

from conch.protocols.openai.fields import Fields

# Labels, storage and routing of requests, and options of images and audio, which are not supported.
_WITHOUT_EFFECT = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("session_id", "mm_processor_kwargs", "media_io_kwargs", "mm_payload", "return_mm_kwargs"),
    # Options of beam search, of other endpoints, and of vLLM's grammar compilers.
    *("length_penalty", "early_stopping", "return_token_offsets", "routed_experts_prompt_start"),
    "guided_decoding_backend",
)
MAX_REQUEST_ID_CHARACTERS = 256


def _empty(value: Any) -> bool:
    return value in (False, [], {}, "")


_REFUSED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("use_beam_search", _empty, "beam search is not implemented"),
    ("watermarking", _empty, "watermarks are not implemented"),
    ("logits_processors", _empty, "clients cannot run code on the server"),
    ("logprob_token_ids", _empty, "use 'logprobs' for the most likely tokens"),
    ("prompt_embeds", _empty, "a prompt must be a text or token ids"),
    ("kv_transfer_params", _empty, "disaggregated serving is not implemented"),
    ("ec_transfer_params", _empty, "disaggregated serving is not implemented"),
    ("vllm_xargs", _empty, "engines have no additional arguments"),
    ("repetition_detection", _empty, "use 'repetition_penalty'"),
    ("thinking_token_budget", lambda value: value == -1, "use 'max_tokens', which includes the reasoning"),
    ("stream_interval", lambda value: value == 1, "every step of the engine is sent as a chunk"),
    ("return_prompt_text", _empty, "use 'return_token_ids' for the prompt's tokens"),
    ("guided_whitespace_pattern", _empty, "white space is chosen by the engine"),
)


def read_extensions(fields: Fields) -> dict[str, Any]:
    """Check the extensions of a generation; return arguments of a `GenerationCall`. Raises InvalidField."""
    for name in _WITHOUT_EFFECT:
        fields.take(name)
    for name, harmless, reason in _REFUSED:
        fields.refuse(name, harmless, reason)
    request_id = fields.text("request_id") or ""
    if len(request_id) > MAX_REQUEST_ID_CHARACTERS:
        text = f"'request_id' may have {MAX_REQUEST_ID_CHARACTERS} characters at most, got {len(request_id)}"
        raise fields.wrong("request_id", text)
    return {
        "request_id": request_id,
        "token_ids": fields.boolean("return_token_ids"),
        "tokens_as_ids": fields.boolean("return_tokens_as_token_ids"),
    }
