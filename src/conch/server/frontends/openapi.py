"""The OpenAPI 3.1 document of a port: the declared endpoints, and the typed inputs and outputs of the loaded models."""

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from conch.domain.model_config import ModelConfig, TensorSpec
from conch.protocols.http.message import header
from conch.protocols.openai.field_rules import FieldRules, rules_of
from conch.protocols.v2_json.generate import structured_tensors

# Names of models with other characters stand in no path as they are.
_PLAIN_NAME = re.compile(r"[\w.-]+", re.ASCII)
_PARAMETER = re.compile(r"\{(\w+)\}")
_OBJECT: Mapping[str, Any] = {"type": "object"}
_TEXT: Mapping[str, Any] = {"type": "string"}
_BITS = re.compile(r"(U?)INT(\d+)")
_DATATYPES = (
    *("BOOL", "BYTES", "FP16", "FP32", "FP64", "BF16"),
    *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
)
_TYPES = {
    "boolean": "stream add_special_tokens ignore_eos echo skip_special_tokens parallel_tool_calls logprobs",
    "integer": "max_tokens max_completion_tokens n seed top_k min_tokens top_logprobs dimensions priority",
    "number": "temperature top_p min_p presence_penalty frequency_penalty repetition_penalty",
    "string": "model user suffix encoding_format",
    "array": "messages tools tokens documents",
}
_FIELD_TYPES = {name: kind for kind, names in _TYPES.items() for name in names.split()}
_REQUIRED = ("model", "messages")
_REGION = {"key": _TEXT, "byte_size": {"type": "integer", "minimum": 1}, "offset": {"type": "integer", "minimum": 0}}
# Bodies of management, by the last segment of the path.
_BODIES: Mapping[str, Mapping[str, Any]] = {
    "index": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    "load": {"type": "object", "properties": {"parameters": {"type": "object", "properties": {"config": _TEXT}}}},
    "unload": {"type": "object", "properties": {"parameters": {"type": "object"}}},
    "register": {"type": "object", "properties": _REGION},
}
_OPTIONAL: Mapping[str, Any] = {"type": ["string", "null"]}


def _object(optional: Mapping[str, Any] | None = None, **required: Mapping[str, Any]) -> dict[str, Any]:
    """Describe an object by its fields."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}


def _array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_INTEGER: Mapping[str, Any] = {"type": "integer"}
_TENSORS = _array(_object(name=_TEXT, datatype=_TEXT, shape=_array(_INTEGER)))
_LIMITS = _object(models=_array(_object(model=_TEXT, version=_TEXT)))
_MODEL_ENTRY = _object(id=_TEXT, object={"const": "model"}, created=_INTEGER)
_SAGEMAKER_MODEL = _object(modelName=_TEXT, modelUrl=_TEXT)
# Answers with documents, by declared paths.
_ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "/v2": _object(name=_TEXT, version=_TEXT, extensions=_array(_TEXT)),
    "/v2/models/{model}": _object(name=_TEXT, versions=_array(_TEXT), inputs=_TENSORS, outputs=_TENSORS),
    "/v2/models/{model}/config": _object(name=_TEXT),
    "/v2/models/{model}/stats": _object(model_stats=_array(_object(name=_TEXT, version=_TEXT))),
    "/v2/models/stats": _object(model_stats=_array(_object(name=_TEXT, version=_TEXT))),
    "/v2/repository/index": _array(_object({"version": _TEXT, "state": _TEXT, "reason": _TEXT}, name=_TEXT)),
    "/v2/logging": _OBJECT,
    "/v2/trace/setting": _OBJECT,
    "/v2/limits": _LIMITS,
    "/v2/limits/rollback": _LIMITS,
    **dict.fromkeys(("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"), _array(_object(name=_TEXT))),
    "/v1/models": _object(data=_array(_MODEL_ENTRY)),
    "/version": _object(version=_TEXT),
    "/models": _object(models=_array(_SAGEMAKER_MODEL)),
    "/models/{model}": _SAGEMAKER_MODEL,
}
_PAGE_QUERY = {"limit": {"type": "integer", "minimum": 1, "maximum": 10_000}, "after": _TEXT,
               "order": {"enum": ["asc", "desc"]}}  # fmt: skip
_LAST_S = {"type": "number", "minimum": 0, "maximum": 1_000_000_000}
_QUERIES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "/v2/debug/events": {"last": _LAST_S},
    "/v2/debug/incident": {"last": _LAST_S},
    "/v1/files": {**_PAGE_QUERY, "purpose": _TEXT},
    "/v1/batches": _PAGE_QUERY,
    "/v1/responses/{response}/input_items": _PAGE_QUERY,
}
_PAGE = Path(__file__).with_name("docs_page.html")
_NO_BODY = ("ready", "live", "health", "ping", "register", "unregister", "load", "unload")
_EVENTS = "text/event-stream"
_STREAMED = ("completions", "messages", "responses")
_TEXT_BODY = ("metrics", "docs", "")


class Operation(NamedTuple):
    """An endpoint as clients see it.

    `scope` is that of the key which it needs, "" for none; `plain_errors`: whether errors are Triton's. `port` is that
    of a cloud platform; 0 for the document's. `fields` names the request of `field_rules.csv` that a body is.
    """

    methods: str
    path: str
    category: str
    summary: str
    scope: str
    plain_errors: bool = True
    port: int = 0
    fields: str = ""


def document(
    title: str, version: str, operations: Iterable[Operation], models: Iterable[ModelConfig]
) -> Iterator[bytes]:
    """Yield the document in pieces: the operations of one path, or of one model, each."""
    described = list(operations)
    head = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "tags": [
            {"name": name} for name in dict.fromkeys(("inference", *(operation.category for operation in described)))
        ],
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": _object(error=_TEXT),
                **{f"Data.{datatype}": _data(datatype) for datatype in _DATATYPES},
            },
        },
    }
    yield orjson.dumps(head)[:-1] + b',"paths":{'
    separator = b""
    for path, items in _by_path(described):
        yield separator + orjson.dumps(path) + b":" + orjson.dumps(items)
        separator = b","
    inference = {operation.path.rpartition("/")[2]: operation for operation in described}
    for config in models:
        if _PLAIN_NAME.fullmatch(config.name):
            for path, item in _of_model(config, inference):
                yield separator + orjson.dumps(path) + b":" + orjson.dumps(item)
    yield b"}}"


def _by_path(operations: Iterable[Operation]) -> Iterator[tuple[str, dict[str, Any]]]:
    expanded = [(path, operation) for operation in operations for path in dict.fromkeys(paths_of(operation.path))]
    for path, group in groupby(sorted(expanded, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        items: dict[str, Any] = {}
        names = _PARAMETER.findall(path)
        if names:
            items["parameters"] = [_parameter(name) for name in names]
        for _, operation in group:
            if operation.port:
                items["servers"] = [{"url": f"http://localhost:{operation.port}"}]
            for method in operation.methods.lower().split():
                items[method] = _operation(operation, method, path)
        yield path, items


def paths_of(path: str) -> tuple[str, str]:
    """Return the paths of a declared one, without and with its optional part."""
    return re.sub(r"\[.*?\]", "", path), path.replace("[", "").replace("]", "")


def _parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "pattern": "^[0-9]{1,18}$" if name == "version" else "^[^/?#%]+$"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _operation(
    operation: Operation,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    answer: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    last = path.rpartition("/")[2]
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": re.sub(r"\W+", "_", f"{method}{path}").strip("_") or method,
        "tags": [operation.category],
        "responses": {
            "200": {
                "description": "Success.",
                **_content(last, answer or _ANSWERS.get(path.replace("/versions/{version}", ""), {})),
            },
            "default": {"description": "Refused or failed.", "content": {"application/json": {}}},
        },
    }
    if operation.plain_errors:
        described["responses"]["default"]["content"] = _json({"$ref": "#/components/schemas/Error"})
    if last == "generate_stream":
        described["responses"]["default"]["content"][_EVENTS] = {}
    if operation.scope:
        described["security"] = [{"key": []}]
        described["x-conch-scope"] = operation.scope
    if method == "get" and path in _QUERIES:
        described["parameters"] = [
            {"name": name, "in": "query", "schema": schema} for name, schema in _QUERIES[path].items()
        ]
    if method in ("post", "put"):
        if body is None:
            body = _fields(rules_of(operation.fields)) if operation.fields else _BODIES.get(last, _OBJECT)
        described["requestBody"] = {"content": _json(body)}
    return described


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _content(last: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    if last in _NO_BODY:
        return {}
    if last in _TEXT_BODY:
        return {"content": {"text/plain": {"schema": _TEXT}, "text/html": {"schema": _TEXT}}}
    if last == "events":
        return {"content": {"application/octet-stream": {}}}
    if last == "incident":  # a file; POST answers with JSON
        return {"content": {"application/octet-stream": {}} | _json(schema)}
    if last == "generate_stream":
        return {"content": {_EVENTS: {}}}
    return {"content": _json(schema) | ({_EVENTS: {}} if last in _STREAMED else {})}


def _fields(rules: FieldRules) -> dict[str, Any]:
    """Describe a body by the table of its fields; others are accepted without effect."""
    properties: dict[str, Any] = {}
    for rule in rules.values():
        if "." not in rule.name and rule.decision != "refused":
            kind = _FIELD_TYPES.get(rule.name)
            properties[rule.name] = {"description": rule.note} if rule.note else {}
            if kind is not None:
                properties[rule.name]["type"] = kind if rule.name in _REQUIRED else [kind, "null"]
    return {"type": "object", "properties": properties, "required": [name for name in _REQUIRED if name in rules]}


def _of_model(config: ModelConfig, operations: Mapping[str, Operation]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield paths of a model and their items, where the port has them."""
    base = f"/v2/models/{config.name}"
    flat, answer = _generate_request(config), _generate_answer(config)
    schemas = {"generate": (flat, answer), "generate_stream": (flat, None)}
    if not config.decoupled:
        schemas["infer"] = (_infer_request(config), _infer_answer(config))
    for action in ("infer", "generate", "generate_stream"):
        if action in schemas and action in operations and operations[action].path.startswith("/v2"):
            operation = operations[action]._replace(summary=f"Run {config.name}.")
            yield f"{base}/{action}", {"post": _operation(operation, "post", f"{base}/{action}", *schemas[action])}


def _infer_request(config: ModelConfig) -> dict[str, Any]:
    required = [spec for spec in config.inputs if not spec.optional]
    outputs = _array(_object(name={"enum": [spec.name for spec in config.outputs]}))
    inputs = _tensors(config.inputs, config, len(required))
    return _object({"id": _TEXT, "parameters": _OBJECT, "outputs": outputs}, inputs=inputs)


def _infer_answer(config: ModelConfig) -> dict[str, Any]:
    return _object({"id": _TEXT}, **_answer_names(config), outputs=_tensors(config.outputs, config, 0))


def _answer_names(config: ModelConfig) -> dict[str, Any]:
    return {"model_name": {"const": config.name}, "model_version": _TEXT}


def _tensors(specs: Iterable[TensorSpec], config: ModelConfig, minimum: int) -> dict[str, Any]:
    kinds = [_tensor(spec, config.max_batch_size) for spec in specs]
    return {"type": "array", "minItems": minimum, "maxItems": len(kinds), "items": {"oneOf": kinds} if kinds else {}}


def _tensor(spec: TensorSpec, max_batch_size: int) -> dict[str, Any]:
    dims = [-1, *spec.dims] if max_batch_size > 0 else list(spec.dims)
    return _object(
        {"data": {"$ref": f"#/components/schemas/Data.{spec.datatype}"}, "parameters": _OBJECT},
        name={"const": spec.name},
        datatype={"const": spec.datatype},
        shape=_shape(dims, max_batch_size),
    )


def _shape(dims: list[int], max_batch_size: int) -> dict[str, Any]:
    """Describe a shape. Positions with different bounds are in its text: few programs know `prefixItems`."""
    if -1 not in dims:
        return {"const": dims}
    batch = f", of a batch of at most {max_batch_size}" if max_batch_size > 0 else ""
    return {
        "type": "array",
        "description": f"{dims}{batch}; -1 is any size",
        "items": {"type": "integer", "minimum": 0},
        "minItems": len(dims),
        "maxItems": len(dims),
        "examples": [[max(size, 1) for size in dims]],
    }


def _element(datatype: str) -> dict[str, Any]:
    number = _BITS.fullmatch(datatype)
    if number is not None:
        bits = int(number[2])
        low, high = (0, 2**bits - 1) if number[1] else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return {"type": "integer", "minimum": low, "maximum": high}
    return {"type": {"BOOL": "boolean", "BYTES": "string"}.get(datatype, "number")}


def _data(datatype: str) -> dict[str, Any]:
    """Describe elements as a flat list or as lists in lists."""
    nested = {"$ref": f"#/components/schemas/Data.{datatype}"}
    return _array({"anyOf": [_element(datatype), nested]})


def _generate_request(config: ModelConfig) -> dict[str, Any]:
    required = [spec.name for spec in config.inputs if not spec.optional]
    properties = {"id": _TEXT, "parameters": _OBJECT, **_flat(config.inputs, config)}
    return {"type": "object", "required": required, "properties": properties}


def _generate_answer(config: ModelConfig) -> dict[str, Any]:
    return _object(_flat(config.outputs, config), **_answer_names(config))


def _flat(specs: Iterable[TensorSpec], config: ModelConfig) -> dict[str, Any]:
    structured = structured_tensors(config)
    values = {}
    for spec in specs:
        element = _element(spec.datatype)
        values[spec.name] = {} if spec.name in structured else {"anyOf": [element, _array(element)]}
    return values


def docs_page() -> tuple[bytes, bytes]:
    """Return the page that lists endpoints and sends requests to them, and its header lines: nothing else may load."""
    page = _PAGE.read_bytes()
    allowed = {
        kind: base64.b64encode(hashlib.sha256(page.partition(b"<%b>" % kind)[2].partition(b"</%b>" % kind)[0]).digest())
        for kind in (b"script", b"style")
    }
    policy = b"; ".join(
        (
            *(b"%b-src 'sha256-%b'" % source for source in allowed.items()),
            b"default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )
    )
    headers = {
        b"Content-Type": b"text/html; charset=utf-8",
        b"Content-Security-Policy": policy,
        b"X-Content-Type-Options": b"nosniff",
        b"Referrer-Policy": b"no-referrer",
        b"Cache-Control": b"no-store",
    }
    return page, b"".join(header(name, value) for name, value in headers.items())
