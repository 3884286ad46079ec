"""Write the reference page of all endpoints, `docs/reference/endpoints.md`: `python -m tools.endpoints_page`."""

from pathlib import Path

from conch.protocols.access.authorization import scope_of
from conch.server.frontends.endpoints import ENDPOINTS, GRPC_CALLS, ApiEndpoint

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "endpoints.md"

_HEAD = """\
# Endpoints

Every endpoint of the server, with the scope of [API keys](../access.md) that it needs and the
[restricted API](../access.md#restricted-apis) that it belongs to. Ports are those of `--http-port`, `--openai-port` and
`--metrics-port`; below `/openai` the HTTP port has the paths of `/v1` too. A part of a path in brackets is optional.
Some endpoints need a flag, and [hosting platforms](../compatibility.md#hosting-platforms) have other ports and paths.

`GET /openapi.json` describes the endpoints of its port in OpenAPI 3.1, with the typed inputs and outputs of the loaded
models. `GET /docs` is a page that lists them and sends requests; it is for clients on the server's machine unless
`--docs-remote=true`.

"""


_GRPC = """
## gRPC

Names without a service belong to `inference.GRPCInferenceService`.

| Protocol | Scope | Calls |
|---|---|---|
"""


def page() -> str:
    """Return the page as Markdown: a table for each restricted API and the ports that have it."""
    groups: dict[tuple[str, tuple[str, ...]], list[ApiEndpoint]] = {}
    for endpoint in ENDPOINTS:
        groups.setdefault((endpoint.category, tuple(endpoint.ports)), []).append(endpoint)
    parts = [_HEAD, "## HTTP\n"]
    for (category, ports), endpoints in groups.items():
        parts.append(f"\n**{category}**: scope {_scope(category)}, port {' and '.join(ports)}\n\n")
        parts += ["| Endpoint | Purpose |\n|---|---|\n", *_rows(endpoints)]
    calls: dict[str, list[str]] = {}
    for path, category in GRPC_CALLS.items():
        calls.setdefault(category, []).append(f"`{path[1:].removeprefix('inference.GRPCInferenceService/')}`")
    parts.append(_GRPC)
    parts += [f"| {category} | {_scope(category)} | {', '.join(paths)} |\n" for category, paths in calls.items()]
    return "".join(parts)


def _rows(endpoints: list[ApiEndpoint]) -> list[str]:
    """Return a row for each purpose, which several paths may have."""
    paths: dict[str, list[str]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.summary, []).append(f"`{endpoint.methods.replace(' ', ', ')} {endpoint.path}`")
    return [f"| {', '.join(names)} | {purpose} |\n" for purpose, names in paths.items()]


def _scope(category: str) -> str:
    scope = scope_of(category)
    return "none" if scope is None else f"`{scope}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
