"""Write the reference page of all endpoints, `docs/reference/endpoints.md`: `python -m tools.endpoints_page`."""

from pathlib import Path

from conch.protocols.access.authorization import scope_of
from conch.server.frontends.endpoints import ENDPOINTS, GRPC_CALLS, ApiEndpoint

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "endpoints.md"

_HEAD = """\
# Endpoints

Every endpoint of the server, with the scope of [API keys](../access.md) that it needs and the
[restricted API](../access.md#restricted-apis) that it belongs to. The server routes requests by the table from which
this page is written. Ports are those of `--http-port`, `--openai-port` and `--metrics-port`; below `/openai` the HTTP
port has the paths of `/v1` too. A part of a path in brackets is optional. Some endpoints need a flag, and
[hosting platforms](../compatibility.md#hosting-platforms) have other ports and paths.

`GET /openapi.json` describes the endpoints of its port in OpenAPI 3.1, with the typed inputs and outputs of the loaded
models. `GET /docs` is a page that lists them and sends requests; it is for clients on the server's machine unless
`--docs-remote=true`.

## HTTP

| Endpoint | Scope | API | Ports | Purpose |
|---|---|---|---|---|
"""
_GRPC = """
## gRPC

| Call | Scope | Protocol |
|---|---|---|
"""


def page() -> str:
    """Return the page as Markdown."""
    rows = [_row(endpoint) for endpoint in ENDPOINTS]
    calls = [f"| `{path[1:]}` | {_scope(category)} | {category} |\n" for path, category in GRPC_CALLS.items()]
    return "".join((_HEAD, *rows, _GRPC, *calls))


def _row(endpoint: ApiEndpoint) -> str:
    named = f"`{endpoint.methods.replace(' ', ', ')} {endpoint.path}`"
    ports = ", ".join(endpoint.ports)
    return f"| {named} | {_scope(endpoint.category)} | {endpoint.category} | {ports} | {endpoint.summary} |\n"


def _scope(category: str) -> str:
    scope = scope_of(category)
    return "none" if scope is None else f"`{scope}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
