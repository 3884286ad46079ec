"""What the server does with each field of a request of the OpenAI API.

The readers work by the table `field_rules.csv`, and docs/reference/openai-fields.md is written from it. Sources:
OpenAI's types, and `CompletionRequest`, `ChatCompletionRequest` and `EmbeddingRequest` of vLLM 0.32 and of older
releases. A row of the table has the requests and the fields that it holds for, separated by spaces.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from conch.base.files.tables import table_rows

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
"""The neutral values of fields that are ignored or refused, where the table has no others."""

# Input items of the Responses API: calls of tools that OpenAI's servers run, and what they have found.
SERVER_ITEMS = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "tool_search_call"),
    *("tool_search_output", "mcp_list_tools", "mcp_call", "mcp_approval_request", "mcp_approval_response"),
    *("computer_call", "computer_call_output", "configuration_update", "program", "program_output"),
)


def rules(*groups: Iterable[FieldRule]) -> FieldRules:
    """Return rules by name; later ones win."""
    return MappingProxyType({rule.name: rule for group in groups for rule in group})


def _read() -> Iterator[tuple[str, FieldRule]]:
    """Yield the rules of the table, each with the name of a request."""
    for row in table_rows(__file__, "field_rules.csv"):
        decision = cast("Decision", row["decision"])
        neutral = EMPTY if decision in ("ignored", "refused") else ()
        if row["neutral"]:
            neutral = tuple(json.loads(row["neutral"]))
        for name in row["fields"].split():
            rule = FieldRule(name, decision, row["note"], neutral, row["conditional"] == "yes")
            for request in row["requests"].split():
                yield request, rule


_ROWS = [
    *_read(),
    *(("response", FieldRule(f"input.{kind}", "ignored", "the server runs no tools", EMPTY)) for kind in SERVER_ITEMS),
]


def rules_of(request: str) -> FieldRules:
    """Return the rules of a request by its name in the table."""
    return rules(rule for name, rule in _ROWS if name == request)


CHAT, COMPLETION, MESSAGES = rules_of("chat"), rules_of("completion"), rules_of("messages")
RESPONSE = rules_of("response")
"""Fields that are missing here are those of chat completions."""
EMBEDDING, RERANK, SCORE, CLASSIFY, POOLING = map(rules_of, ("embedding", "rerank", "score", "classify", "pooling"))
COHERE_EMBED, TOKENIZE, DETOKENIZE = rules_of("cohere_embed"), rules_of("tokenize"), rules_of("detokenize")
OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBEDDING = map(rules_of, ("ollama_chat", "ollama_generate", "ollama_embedding"))

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
