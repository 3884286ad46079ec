"""vLLM's extensions of the OpenAI API that no engine's sampling parameter stands for.

Clients written for vLLM send defaults explicitly. A value that changes no answer is accepted, any other is refused by
the field's name.

Source: vLLM 0.32, `CompletionRequest` and `ChatCompletionRequest`; fields of older releases as they were there.
"""

from collections.abc import Callable
from typing import Any

from conch.protocol.openai.fields import Fields

# They label, store or route a request, or describe images and sound, of which there are none.
_WITHOUT_EFFECT = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("session_id", "mm_processor_kwargs", "media_io_kwargs", "mm_payload", "return_mm_kwargs"),
    # Of beams, of other endpoints, and of vLLM's choice among compilers of grammars.
    *("length_penalty", "early_stopping", "return_token_offsets", "routed_experts_prompt_start"),
    "guided_decoding_backend",
)
_MAX_REQUEST_ID = 256


def _empty(value: Any) -> bool:
    return value in (False, [], {}, "")


_REFUSED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("use_beam_search", _empty, "no engine of this server searches beams"),
    ("watermarking", _empty, "answers are not watermarked"),
    ("logits_processors", _empty, "a client's code is not run"),
    ("logprob_token_ids", _empty, "'logprobs' names how many of the likeliest tokens are returned"),
    ("prompt_embeds", _empty, "a prompt is a text or token ids"),
    ("kv_transfer_params", _empty, "an engine computes prompt and answer by itself"),
    ("ec_transfer_params", _empty, "an engine computes prompt and answer by itself"),
    ("vllm_xargs", _empty, "engines have no further arguments"),
    ("repetition_detection", _empty, "'repetition_penalty' keeps a model from repeating itself"),
    ("thinking_token_budget", lambda value: value == -1, "'max_tokens' bounds thoughts and answer together"),
    ("stream_interval", lambda value: value == 1, "chunks are sent as tokens come"),
    ("return_prompt_text", _empty, "'return_token_ids' returns the prompt's tokens"),
    ("guided_whitespace_pattern", _empty, "the engine decides about white space"),
)


def read_extensions(fields: Fields) -> dict[str, Any]:
    """Read what every call that generates may hold; return arguments of a `Call`. Raises InvalidField."""
    for name in _WITHOUT_EFFECT:
        fields.take(name)
    for name, harmless, why in _REFUSED:
        fields.refuse(name, harmless, why)
    request_id = fields.text("request_id") or ""
    if len(request_id) > _MAX_REQUEST_ID:
        text = f"'request_id' may have {_MAX_REQUEST_ID} characters at most, got {len(request_id)}"
        raise fields.wrong("request_id", text)
    return {
        "request_id": request_id,
        "token_ids": fields.boolean("return_token_ids"),
        "tokens_as_ids": fields.boolean("return_tokens_as_token_ids"),
    }
