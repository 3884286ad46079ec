"""Queries of OpenAI's API: pages of lists, and parameters that are refused because the answer would be another."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import orjson

from conch.base.errors import InvalidRequest
from conch.protocols.openai.fields import InvalidField

_MAX_PARAMETERS, _MAX_LIMIT = 32, 10_000


def read_query(query: bytes, refused: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a query. Raises InvalidField for one of `refused`, which has the reasons by name."""
    try:
        pairs = parse_qsl(query.decode("latin-1"), max_num_fields=_MAX_PARAMETERS)
    except ValueError:
        raise InvalidRequest(f"a query may have {_MAX_PARAMETERS} parameters at most") from None
    values = {name.removesuffix("[]"): value for name, value in pairs}
    for name, reason in refused.items():
        if values.get(name, "false").lower() != "false":
            raise InvalidField(name, f"'{name}' is not supported in a query: {reason}")
    return values


def page_of(documents: Sequence[Mapping[str, Any]], query: bytes) -> bytes:
    """Write the page of a list, newest first, that `limit`, `after` and `order` ask for; without them, all of it.

    Raises InvalidField.
    """
    values = read_query(query, {"before": "pages are read forwards, with 'after'"})
    if "purpose" in values:
        documents = [document for document in documents if document.get("purpose", "") == values["purpose"]]
    order, limit = values.get("order", "desc"), values.get("limit", str(_MAX_LIMIT))
    if order not in ("asc", "desc"):
        raise InvalidField("order", f"'order' must be 'asc' or 'desc', got '{order}'")
    if not limit.isascii() or not limit.isdecimal() or len(limit) > 5 or not 0 < int(limit) <= _MAX_LIMIT:
        raise InvalidField("limit", f"'limit' must be between 1 and {_MAX_LIMIT}, got '{limit[:20]}'")
    rest = list(documents if order == "desc" else reversed(documents))
    if "after" in values:
        places = [place for place, document in enumerate(rest) if document["id"] == values["after"]]
        if not places:
            raise InvalidField("after", f"'after' must be the id of an entry, got '{values['after']}'")
        rest = rest[places[0] + 1 :]
    data = rest[: int(limit)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return orjson.dumps({"object": "list", "data": data, **ends, "has_more": len(data) < len(rest)})
