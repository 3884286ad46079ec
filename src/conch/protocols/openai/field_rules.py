"""What the server does with each field of a request of the OpenAI API.

The readers work by these tables, and docs/reference/openai-fields.md is written from them. Sources: OpenAI's types, and
`CompletionRequest`, `ChatCompletionRequest` and `EmbeddingRequest` of vLLM 0.32 and of older releases.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

# used: it has its effect. label: it has none on answers by its nature, and is accepted. ignored: it is left out, and
# the answer names it. refused: leaving it out would change what the answer means.
Decision: TypeAlias = Literal["used", "label", "ignored", "refused"]


class FieldRule(NamedTuple):
    """What is done with a field. `neutral` values ask for what happens anyway; null is always one of them.

    A reader decides when a `conditional` field is ignored.
    """

    name: str  # with the names of the objects and arrays that it is in: "messages[].content[].type"
    decision: Decision
    note: str
    neutral: Sequence[Any] = ()
    conditional: bool = False


FieldRules: TypeAlias = Mapping[str, FieldRule]

EMPTY: Sequence[Any] = (False, [], {}, "")


def rules(*groups: Iterable[FieldRule]) -> FieldRules:
    """Return rules by name; later ones win."""
    return MappingProxyType({rule.name: rule for group in groups for rule in group})


def _used(names: str, note: str = "") -> list[FieldRule]:
    return [FieldRule(name, "used", note) for name in names.split()]


def _labels(names: str, note: str) -> list[FieldRule]:
    return [FieldRule(name, "label", note) for name in names.split()]


def _ignored(names: str, note: str, neutral: Sequence[Any] = EMPTY, *, conditional: bool = False) -> list[FieldRule]:
    return [FieldRule(name, "ignored", note, neutral, conditional) for name in names.split()]


def _refused(names: str, note: str, neutral: Sequence[Any] = EMPTY) -> list[FieldRule]:
    return [FieldRule(name, "refused", note, neutral) for name in names.split()]


_GENERATION = (
    *_used("model", "the name of a model, or of one of its LoRA adapters"),
    *_used("stream stream_options stream_options.include_usage"),
    *_used("stream_options.continuous_usage_stats", "the usage so far in every chunk"),
    *_used("max_tokens temperature top_p top_k min_p n seed stop"),
    *_used("presence_penalty frequency_penalty repetition_penalty"),
    *_used("logit_bias", "not supported by `openvino_genai`"),
    *_used("logprobs", "`openvino_genai`: chosen tokens only"),
    *_used("response_format response_format.type response_format.json_schema", "text, json_object or json_schema"),
    *_used("response_format.json_schema.schema", "always enforced"),
    *_labels("response_format.json_schema.name response_format.json_schema.description "
             "response_format.json_schema.strict", "the schema is enforced exactly"),
    *_used("structured_outputs guided_json guided_json_object guided_regex guided_grammar guided_choice",
           "at most one of these and `response_format`"),
    *_used("structured_outputs.json structured_outputs.json_object structured_outputs.regex structured_outputs.grammar "
           "structured_outputs.choice"),
    *_used("add_special_tokens", "default: true for completions, false for chats, whose template adds them"),
    *_used("priority", "if the engine supports priorities"),
    *_used("min_tokens ignore_eos stop_token_ids include_stop_str_in_output"),
    *_used("skip_special_tokens spaces_between_special_tokens"),
    *_used("allowed_token_ids bad_words cache_salt", "`vllm` only"),
    *_used("truncate_prompt_tokens truncation_side", "keeps the last tokens of the prompt (default) or the first; "
           "-1: as many as fit"),
    *_used("prompt_logprobs", "not with `stream`; not supported by `tensorrtllm`; `openvino_genai`: only 0 (the "
           "prompt's own tokens), with `\"enable_prefix_caching\": false`"),
    *_used("return_token_ids return_tokens_as_token_ids"),
    *_used("request_id", "part of the response `id`; the header `X-Request-Id` takes precedence"),
    *_labels("user metadata safety_identifier", "a label for the provider's own records"),
    *_labels("store service_tier", "answers are not stored, and there is one tier"),
    *_labels("prompt_cache_key prompt_cache_retention prompt_cache_options session_id",
             "prefixes of prompts are cached without hints"),
    *_labels("mm_processor_kwargs media_io_kwargs mm_payload return_mm_kwargs", "options of images and audio"),
    *_labels("length_penalty early_stopping", "options of beam search"),
    *_labels("return_token_offsets routed_experts_prompt_start", "options of vLLM's other endpoints"),
    *_labels("guided_decoding_backend structured_outputs.backend structured_outputs.disable_fallback",
             "the engine has one compiler of grammars"),
    *_ignored("stream_options.include_obfuscation", "chunks are not obfuscated"),
    *_ignored("kv_transfer_params ec_transfer_params",
              "disaggregated serving is not implemented: the prompt is computed"),
    *_ignored("thinking_token_budget", "use 'max_tokens', which includes the reasoning", (-1,)),
    *_ignored("stream_interval", "every step of the engine is sent as a chunk", (1,)),
    *_ignored("guided_whitespace_pattern structured_outputs.whitespace_pattern "
              "structured_outputs.disable_any_whitespace", "white space is chosen by the engine"),
    *_refused("structured_outputs.disable_additional_properties", "set \"additionalProperties\": false in the schema"),
    *_refused("structured_outputs.structural_tag", "use 'json', 'regex' or 'grammar'"),
    *_refused("use_beam_search", "beam search is not implemented; use 'n'"),
    *_refused("watermarking", "watermarks are not implemented"),
    *_refused("logits_processors", "clients cannot run code on the server"),
    *_refused("logprob_token_ids", "use 'logprobs' for the most likely tokens"),
    *_refused("prompt_embeds", "a prompt must be a text or token ids"),
    *_refused("vllm_xargs", "engines have no additional arguments"),
    *_refused("repetition_detection", "use 'repetition_penalty'"),
    *_refused("return_prompt_text", "use 'return_token_ids' for the prompt's tokens"),
)  # fmt: skip

COMPLETION = rules(
    _GENERATION,
    _used("prompt", "one text or list of token ids, or up to 256 of them"),
    _used("echo", "with `logprobs`, includes those of the prompt tokens; with `\"max_tokens\": 0`, generates nothing"),
    _used("best_of", "must equal `n`"),
    _refused("suffix", "insertions are not implemented; write the model's own marks into 'prompt'"),
)  # fmt: skip

CHAT = rules(
    _GENERATION,
    _used("messages", "texts and images; roles system, developer (system, where the template does not know it), user, "
          "assistant, tool, function; fields that are not listed are named, and passed to the chat template"),
    _used("max_completion_tokens top_logprobs"),
    _used("tools tool_choice parallel_tool_calls", "functions and custom tools, "
          "see [tool calls](../language-models.md#tool-calls)"),
    _used("chat_template_kwargs reasoning_effort documents", "passed to the chat template"),
    _used("add_generation_prompt"),
    _used("continue_final_message", "the model continues the last message"),
    _used("echo", "the answer starts with the last message, if its role is assistant"),
    _used("include_reasoning", "default true"),
    _labels("prediction", "it may save time, and has no effect on the answer"),
    _ignored("verbosity", "the model decides how long its answer is; say it in a message", ("medium",)),
    _ignored("moderation", "answers are not moderated; send them to a model that classifies"),
    _ignored("tools[].function.strict", "arguments are not enforced with 'tool_choice' auto; required or a name does",
             conditional=True),
    _ignored("tools[].custom.format", "the model is shown the format, and may deviate from it", conditional=True),
    _used("messages[].role messages[].content messages[].name messages[].tool_call_id messages[].refusal"),
    _used("messages[].reasoning_content messages[].reasoning messages[].thinking messages[].tool_plan "
          "messages[].documents messages[].tools messages[].functions", "passed to the chat template"),
    _labels("messages[].annotations messages[].provider_specific_fields messages[].tool_calls[].index",
            "what answers have is accepted in a conversation"),
    _used("messages[].tool_calls messages[].tool_calls[].id messages[].tool_calls[].type"),
    _used("messages[].tool_calls[].function messages[].tool_calls[].function.name "
          "messages[].tool_calls[].function.arguments", "the arguments are an object to the template"),
    _used("messages[].tool_calls[].custom messages[].tool_calls[].custom.name messages[].tool_calls[].custom.input"),
    _refused("messages[].function_call", "use 'tool_calls'"),
    _refused("messages[].audio", "only text is supported"),
    _used("messages[].content[].type messages[].content[].text messages[].content[].refusal"),
    _labels("messages[].content[].cache_control messages[].content[].prompt_cache_breakpoint",
            "prefixes of prompts are cached without hints"),
    _used("messages[].content[].image_url messages[].content[].image_url.url", "in messages of the user, a data URL, "
          "for [models that take images](../language-models.md#images)"),
    _labels("messages[].content[].image_url.detail", "the model's processor decides the resolution"),
    _refused("messages[].content[].input_audio messages[].content[].file", "send the text", ()),
    _used("tools[].type tools[].function tools[].function.name tools[].function.description "
          "tools[].function.parameters tools[].custom tools[].custom.name tools[].custom.description"),
    _used("tools[].function.return tools[].function.response", "passed to the chat template"),
    _labels("tools[].cache_control", "prefixes of prompts are cached without hints"),
    _used("tool_choice.type tool_choice.function tool_choice.function.name tool_choice.custom tool_choice.custom.name"),
    _used("tool_choice.allowed_tools tool_choice.allowed_tools.mode tool_choice.allowed_tools.tools",
          "other tools are not shown to the model"),
    _refused("modalities", "only text is generated", (["text"],)),
    _refused("audio", "only text is generated"),
    _refused("web_search_options", "the server does not search; offer a tool that does in 'tools'", ()),
    _refused("chat_template", "clients cannot replace the model's template, which is a program", ()),
    _refused("functions", "use 'tools'"),
    _refused("function_call", "use 'tool_choice'", ("none", "auto")),
)  # fmt: skip

EMBEDDING = rules(
    _used("model"),
    _used("input", "one text or list of token ids, or up to 2048 of them"),
    _used("encoding_format", "`float`, `base64`"),
    _used("dimensions", "vector length, if the model's parameter `matryoshka_dimensions` lists it"),
    _used("truncate_prompt_tokens truncation_side", "keeps the first tokens (default) or the last (`left`); -1: the "
          "model's maximum"),
    _labels("user request_id mm_processor_kwargs", "no effect on vectors"),
    _ignored("priority", "priorities of embeddings are not implemented", (0,)),
    _ignored("cache_salt", "embeddings have no prefix cache"),
    _ignored("padding", "padding is chosen by the engine", ("do_not_pad",)),
    _refused("add_special_tokens", "special tokens are always added", (True,)),
    _refused("embed_dtype", "vectors are always float32", ("float32",)),
    _refused("endianness", "base64 is always little-endian", ("native", "little")),
    _refused("normalize use_activation", "the model decides", ()),
)  # fmt: skip

TOKENIZE = rules(
    _used("model", "the only model, if it is missing"),
    _used("prompt", "a text"),
    _used("messages tools add_generation_prompt continue_final_message chat_template_kwargs", "a chat, as above"),
    _used("add_special_tokens return_token_strs"),
    _labels("media_io_kwargs mm_processor_kwargs", "options of images and audio"),
    _refused("chat_template", "clients cannot replace the model's template, which is a program", ()),
)

DETOKENIZE = rules(_used("model", "the only model, if it is missing"), _used("tokens"))

# Input items of the Responses API: calls of tools that OpenAI's servers run, and what they have found.
SERVER_ITEMS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "tool_search_call"),
    *("tool_search_output", "mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"),
    *("computer_call", "computer_call_output", "configuration_update", "program", "program_output"),
)

# Fields that are missing here are those of chat completions.
RESPONSE = rules(
    _used("input", "a text, or items of text, images, reasoning, calls and results; images in results of tools are "
          "ignored"),
    _used("instructions", "the begin of the system message"),
    _used("max_output_tokens", "an upper bound: shrinks to what the prompt leaves of the context"),
    _used("include top_logprobs"),
    _used("tools", "functions, custom tools and namespaces of them; other types are ignored"),
    _used("tool_choice", "none, auto, required, allowed_tools, or one of `tools`"),
    _used("previous_response_id", "needs `--responses-store`"),
    _used("store", "true by default, with `--responses-store`"),
    _used("metadata", "repeated in the answer"),
    _used("reasoning reasoning.effort", "passed to the chat template"),
    _used("reasoning.summary reasoning.generate_summary", "the reasoning itself is sent as its summary"),
    _used("text text.format text.format.type text.format.schema", "text, json_object or json_schema"),
    _labels("text.format.name text.format.description text.format.strict", "the schema is enforced exactly"),
    _labels("reasoning.context", "the chat template decides which reasoning the model sees"),
    _labels("client_metadata access_programs user safety_identifier service_tier background_options",
            "a label for the provider's own records"),
    _labels("prompt_cache_key prompt_cache_retention prompt_cache_options",
            "prefixes of prompts are cached without hints"),
    _used("stream_options"),
    _ignored("stream_options.include_obfuscation", CHAT["stream_options.include_obfuscation"].note),
    _labels("max_tool_calls image", "options of tools that OpenAI's servers run"),
    _ignored("tools[].strict", CHAT["tools[].function.strict"].note, (False,), conditional=True),
    _used("input[].type input[].role input[].content input[].content[].type input[].content[].text "
          "input[].content[].refusal"),
    _used("input[].call_id input[].name input[].namespace input[].arguments input[].input input[].action "
          "input[].output input[].output[].type input[].output[].text"),
    _used("input[].summary input[].summary[].type input[].summary[].text input[].encrypted_content"),
    _used("input[].tools", "as `tools`"),
    _used("input[].content[].image_url input[].content[].file_id", "images of the user as data URLs; no files"),
    _labels("input[].content[].detail", "the model's processor decides the resolution"),
    _labels("input[].id input[].status input[].phase input[].created_by input[].caller input[].content[].annotations "
            "input[].content[].logprobs", "what answers have is accepted in a conversation"),
    _labels("input[].content[].prompt_cache_breakpoint input[].output[].prompt_cache_breakpoint",
            "prefixes of prompts are cached without hints"),
    _labels("input[].output[].image_url input[].output[].detail input[].output[].file_id input[].output[].file_data "
            "input[].output[].file_url input[].output[].filename", "of images and files: the answer names these"),
    _ignored(" ".join(f"input.{kind}" for kind in SERVER_ITEMS), "the server runs no tools"),
    _ignored("input.input_image input.input_file", "the model reads only the text of a tool's result"),
    _ignored("input.encrypted_content", "reasoning that another server has encrypted"),
    _used("tools[].type tools[].name tools[].description tools[].parameters tools[].format tools[].tools "
          "tools[].tools[].type tools[].tools[].name tools[].tools[].description tools[].tools[].parameters "
          "tools[].tools[].format"),
    _ignored("tools[].tools[].strict", CHAT["tools[].function.strict"].note, (False,), conditional=True),
    _ignored("tools[].defer_loading tools[].tools[].defer_loading", "the model is shown all tools"),
    _ignored("tools[].output_schema tools[].tools[].output_schema", "describe the result in 'description'"),
    _ignored("tools[].allowed_callers tools[].tools[].allowed_callers tools[].async tools[].tools[].async",
             "only the client calls tools"),
    _used("tool_choice.type tool_choice.name tool_choice.namespace tool_choice.mode tool_choice.tools"),
    _ignored("text.verbosity", "the model decides how long its answer is; say it in `instructions`", ("medium",)),
    _ignored("reasoning.mode", "the model has one", ("standard",)),
    _ignored("truncation", "a conversation that is too long is refused, never cut", ("disabled",)),
    _ignored("context_management", "a conversation is not compacted by the server"),
    _ignored("return_token_ids return_tokens_as_token_ids prompt_logprobs", "use chat completions"),
    _refused("background", "an answer is sent while its client waits"),
    _refused("conversation", "send the items as 'input', or 'previous_response_id'"),
    _refused("prompt", "send 'instructions' and 'input'; prompts are not stored"),
    _refused("moderation", "send the text to a model that classifies"),
    _refused("messages", "send 'input'"),
    _refused("max_tokens max_completion_tokens", "use 'max_output_tokens'"),
    _refused("response_format", "use 'text.format'"),
    _refused("reasoning_effort", "use 'reasoning.effort'"),
    _refused("logprobs", "add \"message.output_text.logprobs\" to 'include'"),
    _refused("n best_of", "there is one answer", (1,)),
    _refused("functions function_call", "use 'tools' and 'tool_choice'"),
    _refused("echo continue_final_message", "use chat completions"),
)  # fmt: skip

MESSAGES = rules(
    _used("model messages system stream temperature top_p top_k stop_sequences tools"),
    _used("max_tokens", "default, and at most: until the context is full"),
    _used("tool_choice tool_choice.type tool_choice.name tool_choice.disable_parallel_tool_use"),
    _used("thinking thinking.type", "passed to the chat template as `enable_thinking`; disabled hides the reasoning"),
    _used("thinking.display", "omitted hides the reasoning"),
    _used("output_config output_config.format output_config.format.type output_config.format.schema", "a JSON schema"),
    _used("output_format output_format.type output_format.schema", "an older name of `output_config.format`"),
    _used("output_config.effort", "passed to the chat template as `reasoning_effort`"),
    _labels("metadata user_profile_id workspace_id inference_geo service_tier speed betas diagnostics", ""),
    _labels("cache_control", "prefixes are cached by themselves"),
    _ignored("thinking.budget_tokens output_config.task_budget", "'max_tokens' includes the reasoning"),
    _ignored("context_management fallbacks", "the conversation is used as it is sent, by the model that it names"),
    _used("messages[].role messages[].content messages[].content[].type messages[].content[].text"),
    _used("system[].type system[].text", "except for Claude Code's block of bills"),
    _used(
        "messages[].content[].id messages[].content[].name messages[].content[].input "
        "messages[].content[].tool_use_id messages[].content[].is_error messages[].content[].content "
        "messages[].content[].content[].type messages[].content[].content[].text "
        "messages[].content[].content[].tool_name",
        "calls of tools and their results",
    ),
    _used("messages[].content[].thinking", "earlier reasoning, passed to the chat template"),
    _used(
        "messages[].content[].tool_name messages[].content[].title messages[].content[].context "
        "messages[].content[].source messages[].content[].source.type messages[].content[].source.data "
        "messages[].content[].source.content messages[].content[].source.content[].type "
        "messages[].content[].source.content[].text messages[].content[].content[].title "
        "messages[].content[].content[].context messages[].content[].content[].source "
        "messages[].content[].content[].content",
        "documents and search results of text, images",
    ),
    _used(
        "messages[].content[].source.media_type messages[].content[].source.url "
        "messages[].content[].content[].source.type messages[].content[].content[].source.data "
        "messages[].content[].content[].source.media_type messages[].content[].content[].source.url",
        "images as base64, or data URLs, for [models that take images](../language-models.md#images)",
    ),
    _labels(
        "messages[].content[].signature messages[].content[].data messages[].content[].caller",
        "what answers have is accepted in a conversation",
    ),
    _labels(
        "messages[].content[].cache_control messages[].content[].content[].cache_control "
        "messages[].content[].source.content[].cache_control system[].cache_control tools[].cache_control",
        "prefixes are cached by themselves",
    ),
    _labels("tools[].eager_input_streaming", "arguments of calls are always streamed"),
    _ignored(
        "messages[].content[].citations messages[].content[].content[].citations "
        "messages[].content[].source.content[].citations system[].citations",
        "answers do not cite",
        (*EMPTY, {"enabled": False}),
    ),
    _ignored("messages[].clear_at messages[].output_config", "the conversation is used as it is sent"),
    _used("tools[].name tools[].description tools[].input_schema"),
    _ignored("tools[].strict", CHAT["tools[].function.strict"].note),
    _ignored("tools[].input_examples", "describe the arguments in 'input_schema'"),
    _ignored("tools[].defer_loading", "the model is shown all tools"),
    _ignored("tools[].allowed_callers", "only the client calls tools", (*EMPTY, ["direct"])),
    _ignored(
        "tools[].type",
        "the server runs no tools; those with an 'input_schema' are passed to the model",
        conditional=True,
    ),
    _ignored("mcp_servers container", "the server runs no tools"),
)

# By the title of the page.
_OLLAMA_MODEL = (
    *_used("model", "`:latest` at the end is left out"),
    *_labels("keep_alive", "`--idle-unload-secs` says how long an idle engine runs; 0 without a prompt is refused"),
    *_labels("options.num_ctx options.num_batch options.num_gpu options.main_gpu options.num_thread options.numa "
             "options.low_vram options.f16_kv options.logits_all options.vocab_only options.use_mmap options.use_mlock "
             "options.embedding_only", "the model's configuration says how it is loaded"),
)  # fmt: skip
_OLLAMA_GENERATION = (
    *_OLLAMA_MODEL,
    *_used("stream", "default: true"),
    *_used("format", "json, or a JSON schema"),
    *_used("think", "true, false or an effort; passed to the chat template"),
    *_used("logprobs top_logprobs"),
    *_used("options options.temperature options.top_k options.top_p options.min_p options.seed options.stop "
           "options.repeat_penalty options.presence_penalty options.frequency_penalty", "default: the model's"),
    *_used("options.num_predict", "default, and below 1: until the context is full"),
    *_ignored("truncate shift", "a prompt that exceeds the context is refused"),
    *_ignored("options.mirostat options.mirostat_tau options.mirostat_eta", "use top_k, top_p or min_p", (0,)),
    *_ignored("options.typical_p options.tfs_z", "use top_k, top_p or min_p", (1,)),
    *_ignored("options.num_keep options.repeat_last_n options.penalize_newline",
              "penalties count the whole answer, and no prompt is cut"),
)  # fmt: skip
OLLAMA_CHAT = rules(
    _OLLAMA_GENERATION,
    _used("messages"),
    _used("messages[].role messages[].content messages[].tool_call_id messages[].tool_calls messages[].tool_calls[].id "
          "messages[].tool_calls[].type messages[].tool_calls[].function messages[].tool_calls[].function.name "
          "messages[].tool_calls[].function.arguments"),
    _used("messages[].thinking messages[].tool_name messages[].name", "passed to the chat template"),
    _labels("messages[].tool_calls[].function.index", "what answers have is accepted in a conversation"),
    _used("messages[].images", "of the user, for [models that take images](../language-models.md#images)"),
    _used("tools tools[].type tools[].function tools[].function.name tools[].function.description "
          "tools[].function.parameters"),
)  # fmt: skip
OLLAMA_GENERATE = rules(
    _OLLAMA_GENERATION,
    _used("prompt system"),
    _used("raw", "the prompt is not rendered by the chat template"),
    _used("images", "not with `raw`"),
    _ignored("template", "clients cannot replace the model's template, which is a program; use 'raw'"),
    _refused("suffix", "insertions are not implemented; write the model's own marks into a raw prompt"),
    _refused("context", "send the conversation as the messages of /api/chat"),
)
OLLAMA_EMBEDDING = rules(
    _OLLAMA_MODEL,
    _used("input", "of `/api/embed`: one text, or up to 2048"),
    _used("prompt", "of `/api/embeddings`: one text"),
    _used("truncate", "default: true"),
    _used("dimensions", "vector length, if the model's parameter `matryoshka_dimensions` lists it"),
)

_TEXTS = (
    *_used("model"),
    *_used("truncate_prompt_tokens truncation_side", "keeps the first tokens (default) or the last (`left`); -1: the "
           "model's maximum; without it, too long a text is refused"),
    *_labels("user request_id mm_processor_kwargs", "no effect on answers"),
    *_ignored("priority", "priorities of texts are not implemented", (0,)),
    *_refused("add_special_tokens", "special tokens are always added", (True,)),
    *_refused("messages", "send the text in 'input'"),
)  # fmt: skip
_ACTIVATION = _used("use_activation activation", "false: logits instead of probabilities")

RERANK = rules(
    _TEXTS,
    _used("query", "a text that is not empty; it is never truncated"),
    _used("documents", "up to 2048 texts, or objects with `text`"),
    _used("top_n", "0, or more than there are: all documents"),
    _used("return_documents", "default false"),
    _used("rank_fields", "members of documents that are objects"),
    _used("max_tokens_per_doc", "default 4096; the model's maximum counts too. `X-Conch-Degraded` reports truncation"),
    _used("use_activation raw_scores", "logits instead of the scores of the model's activation"),
    _ignored("max_chunks_per_doc", "documents are truncated, not divided; use 'max_tokens_per_doc'", (1,)),
    _labels("truncation", "documents are truncated"),
)

SCORE = rules(
    _TEXTS,
    _ACTIVATION,
    _used("text_1 text_2", "a text with one or several, or arrays of the same length"),
    _used("queries documents items data_1 data_2", "vLLM's other names of the two"),
    _refused("encoding_format", "scores are numbers", ("float",)),
)

CLASSIFY = rules(_TEXTS, _ACTIVATION, _used("input", "one text or list of token ids, or up to 2048 of them"))

POOLING = rules(
    CLASSIFY.values(),
    _used("task", "`embed`, `token_embed`, `classify`; default: what the model does"),
    _used("encoding_format", "`float`, `base64`"),
    _used("dimensions", "as for embeddings"),
    _used("normalize", "false: vectors as the model gives them"),
)

COHERE_EMBED = rules(
    _used("model"),
    _used("texts", "up to 96"),
    _used("inputs inputs[].content inputs[].content[].type inputs[].content[].text", "texts only"),
    _used("input_type", "a model with prompts of sentence-transformers gets the prompt of this type"),
    _used("embedding_types", "`float`, `int8`, `uint8`, `binary`, `ubinary`, `base64`. Integers keep the direction: "
          "the largest element is 127"),
    _used("truncate max_tokens", "END by default, as in Cohere's API; `X-Conch-Degraded` reports truncation"),
    _used("output_dimension", "as `dimensions` of embeddings"),
    _ignored("priority", "priorities of texts are not implemented", (0,)),
    _refused("images", "models of texts take no images; use 'texts'"),
)  # fmt: skip

# By the title of the page.

ALL_RULES: Mapping[str, FieldRules] = MappingProxyType(
    {
        "Chat completions": CHAT,
        "Completions": COMPLETION,
        "Responses": RESPONSE,
        "Embeddings": EMBEDDING,
        "`/v1/messages` and `/v1/messages/count_tokens`": MESSAGES,
        "Rerank": RERANK,
        "Score": SCORE,
        "Classify": CLASSIFY,
        "Pooling": POOLING,
        "Cohere's embed": COHERE_EMBED,
        "`/tokenize`": TOKENIZE,
        "`/detokenize`": DETOKENIZE,
        "Ollama's `/api/chat`": OLLAMA_CHAT,
        "Ollama's `/api/generate`": OLLAMA_GENERATE,
        "Ollama's `/api/embed` and `/api/embeddings`": OLLAMA_EMBEDDING,
    }
)
