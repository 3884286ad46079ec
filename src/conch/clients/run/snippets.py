"""Requests to a model as commands that work when they are pasted into a shell: with curl, and with Python alone."""

import json
import re
from collections.abc import Sequence
from enum import Enum
from math import prod
from typing import Any
from urllib.parse import quote

from conch.domain.model_config import ModelConfig, TensorSpec

_MAX_VALUES = 64  # of inputs that are written as JSON; others are zeros in binary form
_IMAGE_DIMS, _IMAGE_SIZE = 3, 224  # an input of three dimensions or more may be an image
_PROMPT, _MAX_TOKENS = "Say hello in one sentence.", 100
_EXAMPLE = "example_request"  # of models that are declared in Python
_KEY_VARIABLE = "CONCH_API_KEY"
_IMAGE_NAME = re.compile("image|img|photo|picture|jpe?g|png", re.IGNORECASE)
# A PNG file of one red pixel, in base64.
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
_BYTES_EACH = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}


class Api(Enum):
    """How a model is asked."""

    INFER = "infer"
    CHAT = "chat/completions"
    COMPLETION = "completions"  # of language models without a chat template
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    CLASSIFY = "classify"


# Body, and which part of the answer is shown.
_BODIES: dict[Api, tuple[dict[str, Any], str]] = {
    Api.CHAT: (
        {"messages": [{"role": "user", "content": _PROMPT}], "max_tokens": _MAX_TOKENS},
        '["choices"][0]["message"]["content"]',
    ),
    Api.COMPLETION: ({"prompt": _PROMPT, "max_tokens": _MAX_TOKENS}, '["choices"][0]["text"]'),
    Api.EMBEDDINGS: ({"input": ["hello", "goodbye"]}, '["data"]'),
    Api.RERANK: ({"query": "hello", "documents": ["good morning", "goodbye"]}, '["results"]'),
    Api.CLASSIFY: ({"input": "hello"}, '["data"]'),
}


def _api_body(model: str, api: Api) -> dict[str, Any]:
    return {"model": model, **_BODIES[api][0]}


def curl(url: str, config: ModelConfig, *, api: Api, with_key: bool) -> str:
    """Return a line for a shell that sends a request with sample values to the model."""
    key = f' -H "Authorization: Bearer ${_KEY_VARIABLE}"' if with_key else ""
    if api is not Api.INFER:
        return f"curl -s{key} {url}/v1/{api.value} -d {_quoted(json.dumps(_api_body(config.name, api)))}"
    path = f"{url}/v2/models/{quote(config.name)}"
    if takes_image(config):
        shown = "| tr -d '\\0'" if all(spec.datatype == "BYTES" for spec in config.outputs) else "-o answer.bin"
        raw = "-H 'Inference-Header-Content-Length: 0' --data-binary @-"
        return f"echo {_PIXEL} | base64 -d | curl -s{key} {path}/infer {raw} {shown}"
    if config.decoupled or _EXAMPLE in config.parameters:
        return f"curl -s{key} {path}/{_generate(config)} -d {_quoted(json.dumps(_fields(config)))}"
    if sum(_count(config, spec) for spec in _sent(config)) <= _MAX_VALUES:
        return f"curl -s{key} {path}/infer -d {_quoted(json.dumps(_request(config)))}"
    head, size = _binary_request(config)
    return (
        f"(printf %s {_quoted(head)}; head -c {size} /dev/zero) | curl -s{key} {path}/infer "
        f"-H 'Inference-Header-Content-Length: {len(head.encode())}' --data-binary @- -o answer.json"
    )


def python(url: str, config: ModelConfig, *, api: Api, with_key: bool) -> str:
    """Return a program that sends a request with sample values; it imports the standard library only."""
    headers = f', {{"Authorization": "Bearer " + os.environ["{_KEY_VARIABLE}"]}}' if with_key else ""
    imports = f"import json{', os' if with_key else ''}, urllib.request"
    if takes_image(config):
        return _python_image(f"{url}/v2/models/{quote(config.name)}/infer", config, headers[2:], imports)
    if api is not Api.INFER:
        path, body, shown = f"/v1/{api.value}", repr(_api_body(config.name, api)), _BODIES[api][1]
    elif config.decoupled or _EXAMPLE in config.parameters:
        path, body, shown = f"/v2/models/{quote(config.name)}/{_generate(config)}", repr(_fields(config)), ""
    else:
        path, body, shown = f"/v2/models/{quote(config.name)}/infer", _python_request(config), '["outputs"]'
    read = f"json.load(response){shown}" if shown else "response.read().decode()"
    return "\n".join(
        [
            imports,
            f"body = {body}",
            f'request = urllib.request.Request("{url}{path}", json.dumps(body).encode(){headers})',
            "with urllib.request.urlopen(request) as response:",
            f"    print({read})",
        ]
    )


def takes_image(config: ModelConfig) -> bool:
    """Whether a model's only input seems to be an image file. It has a one-pixel image in the requests."""
    sent = _sent(config)
    if config.decoupled or _EXAMPLE in config.parameters or len(sent) != 1:
        return False
    (spec,) = sent
    return spec.datatype == "BYTES" and _count(config, spec) == 1 and _IMAGE_NAME.search(spec.name) is not None


def _python_image(url: str, config: ModelConfig, headers: str, imports: str) -> str:
    (spec,) = _sent(config)
    tensor = json.dumps(_tensor(config, spec))[:-1]
    return "\n".join(
        [
            imports.replace("import json", "import json, base64"),
            f'image = base64.b64decode("{_PIXEL}")  # or open("photo.jpg", "rb").read()',
            f'body = {{"inputs": [{tensor}, "parameters": {{"binary_data_size": 4 + len(image)}}}}]}}',
            "head = json.dumps(body).encode()",
            'data = head + len(image).to_bytes(4, "little") + image',
            f'headers = {{"Inference-Header-Content-Length": len(head){", **" + headers if headers else ""}}}',
            f'with urllib.request.urlopen(urllib.request.Request("{url}", data, headers)) as response:',
            '    print(json.load(response)["outputs"])',
        ]
    )


def _sent(config: ModelConfig) -> list[TensorSpec]:
    return [spec for spec in config.inputs if not spec.optional] or list(config.inputs[:1])


def _shape(config: ModelConfig, spec: TensorSpec) -> list[int]:
    free = _IMAGE_SIZE if len(spec.dims) >= _IMAGE_DIMS else 1
    return [*([1] if config.max_batch_size else []), *(free if size < 0 else size for size in spec.dims)]


def _count(config: ModelConfig, spec: TensorSpec) -> int:
    return prod(_shape(config, spec))


def _value(spec: TensorSpec) -> Any:
    return "hello" if spec.datatype == "BYTES" else True if spec.datatype == "BOOL" else 1


def _parameters(config: ModelConfig) -> dict[str, Any]:
    if config.sequence_batching is None:
        return {}
    return {"parameters": {"sequence_id": 1, "sequence_start": True, "sequence_end": True}}


def _tensor(config: ModelConfig, spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "shape": _shape(config, spec), "datatype": spec.datatype}


def _request(config: ModelConfig) -> dict[str, Any]:
    inputs = [{**_tensor(config, spec), "data": [_value(spec)] * _count(config, spec)} for spec in _sent(config)]
    return {**_parameters(config), "inputs": inputs}


def _python_request(config: ModelConfig) -> str:
    """Return the request as source code, in which long lists are products."""
    tensors = []
    for spec in _sent(config):
        fields = repr(_tensor(config, spec))[:-1]
        tensors.append(f'{fields}, "data": [{_value(spec)!r}] * {_count(config, spec)}}}')
    parameters = repr(_parameters(config))[1:-1]
    return f"{{{parameters}{', ' if parameters else ''}'inputs': [{', '.join(tensors)}]}}".replace("'", '"')


def _binary_request(config: ModelConfig) -> tuple[str, int]:
    """Return the JSON of a request with binary inputs, and the bytes of these, all zero."""
    inputs, total = [], 0
    for spec in _sent(config):
        tensor = _tensor(config, spec)
        if spec.datatype == "BYTES":  # a length of zero for each
            size = 4 * _count(config, spec)
        else:
            size = _element_bytes(spec.datatype) * _count(config, spec)
        inputs.append({**tensor, "parameters": {"binary_data_size": size}})
        total += size
    return json.dumps({**_parameters(config), "inputs": inputs}), total


def _element_bytes(datatype: str) -> int:
    return _BYTES_EACH.get(datatype) or int(datatype.lstrip("UINT")) // 8


def _generate(config: ModelConfig) -> str:
    return "generate_stream" if config.decoupled else "generate"


def _fields(config: ModelConfig) -> dict[str, Any]:
    """Return the body of `generate`: the example of a model that is declared in Python, or each input by its name."""
    if _EXAMPLE in config.parameters:
        example: dict[str, Any] = json.loads(config.parameters[_EXAMPLE])
        return example
    return {
        spec.name: value[0] if len(value) == 1 else value
        for spec in _sent(config)
        if (value := [_value(spec)] * _count(config, spec))
    }


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def tensors(specs: Sequence[TensorSpec]) -> str:
    """Return inputs or outputs as text."""
    return ", ".join(f"{spec.name} {spec.datatype}[{','.join(map(str, spec.dims))}]" for spec in specs)
