# Compiled by mypyc in wheels.
"""Large inference requests and responses in JSON, decoded and encoded in a worker process.

A worker packs the `data` arrays of a request to wire bytes and returns the rest as a small JSON document, which the
server decodes with `inference.decode_parts(…, packed=…)`. For a response the server sends the bytes of the tensors and
receives the encoded body.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from conch.base.errors import InvalidRequest
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Buffer, Tensor
from conch.protocols.classification import classify
from conch.protocols.compression import compress
from conch.protocols.json_document import array, member, parameters_of, text
from conch.protocols.regions import BYTE_SIZE, OFFSET, REGION
from conch.protocols.v2_json.inference import OutputOptions, encode_response, parse_object, read_data, read_parameters

# Bodies and tensors up to this size are decoded and encoded on the event loop, in 50 ms at the slowest rate.
MAX_INLINE_BYTES: Final = 128 * 1024
# Of any request: each takes about 10 µs on the event loop.
MAX_TENSORS: Final = 2048
MAX_PARAMETERS: Final = 2048
MAX_PARAMETER_CHARACTERS: Final = 16 * 2**20
MAX_NAMES_BYTES: Final = 2**20
# Cost of a classified byte, relative to one in JSON.
_CLASSIFICATION_COST: Final = 8
_INPUT_PARAMETERS = ("binary_data_size", REGION, BYTE_SIZE, OFFSET)
_OUTPUT_PARAMETERS = ("binary_data", "classification", REGION, BYTE_SIZE, OFFSET)


def check_size(size: int, limit: int) -> None:
    """Raise InvalidRequest for a JSON part that is too large."""
    if size > limit:
        raise InvalidRequest(
            f"Request JSON size of {size} bytes exceeds the maximum allowed value of {limit} bytes. "
            "Use --http-max-input-size to increase the limit."
        )


def pack_inputs(header: Buffer) -> tuple[bytes, list[bytes]]:
    """Return the JSON of a request without its data, and the wire bytes of each `data` array, in order.

    Raises InvalidRequest as `decode_request` does, and for too many tensors or parameters.
    """
    document = parse_object(header)
    kept: dict[str, Any] = {}
    if "id" in document:
        kept["id"] = text(document["id"], "id")
    if "parameters" in document:
        kept["parameters"] = parameters_of(document)
        check_parameters(kept["parameters"])
    entries = array(member(document, "inputs"), "inputs")
    check_count("inputs", len(entries), MAX_TENSORS)
    packed: list[bytes] = []
    kept["inputs"] = [_pack_input(entry, packed) for entry in entries]
    if "outputs" in document:
        outputs = array(document["outputs"], "outputs")
        check_count("outputs", len(outputs), MAX_TENSORS)
        kept["outputs"] = [_output(entry) for entry in outputs]
    # Bounded, since the event loop parses it and errors quote it.
    size = len(json.dumps({key: value for key, value in kept.items() if key != "parameters"}))
    if size > MAX_NAMES_BYTES:
        raise InvalidRequest(
            f"the id of a request and the names, shapes and parameters of its inputs and outputs may have at most "
            f"{MAX_NAMES_BYTES} bytes, got {size}"
        )
    # By the standard library, since a parameter may be NaN.
    return json.dumps(kept).encode(), packed


def _pack_input(entry: Any, packed: list[bytes]) -> dict[str, Any]:
    data = read_data(entry)
    kept = {key: entry[key] for key in ("name", "datatype", "shape") if key in entry}
    if entry.get("parameters") is not None:
        parameters = parameters_of(entry)
        kept["parameters"] = {key: parameters[key] for key in _INPUT_PARAMETERS if key in parameters}
    if data is not None:
        kept["data"] = 0
        packed.append(data)
    else:
        _check_small(kept)
    return kept


def _output(entry: Any) -> dict[str, Any]:
    kept: dict[str, Any] = {"name": text(member(entry, "name"), "name")}
    if entry.get("parameters") is not None:
        parameters = parameters_of(entry)
        kept["parameters"] = {key: parameters[key] for key in _OUTPUT_PARAMETERS if key in parameters}
    return kept


def _check_small(kept: dict[str, Any]) -> None:
    """Bound the members that are not checked here, since the event loop parses them."""
    for key, value in kept.items():
        if type(value) in (list, str) and len(value) > MAX_TENSORS:
            raise InvalidRequest(f"'{key}' of an input is too long: {len(value)} elements")


def check_count(what: str, count: int, maximum: int) -> None:
    """Raise InvalidRequest if a request has more than `maximum` of something."""
    if count > maximum:
        raise InvalidRequest(f"a request may have at most {maximum} {what}, got {count}")


def check_parameters(parameters: dict[str, Any]) -> None:
    """Raise InvalidRequest for parameters that are invalid, too many or too large."""
    check_count("parameters", len(parameters), MAX_PARAMETERS)
    read_parameters(InferRequest("", []), parameters)
    size = sum(len(value) for value in parameters.values() if type(value) is str)
    if size > MAX_PARAMETER_CHARACTERS:
        raise InvalidRequest(
            f"the parameters of a request may have at most {MAX_PARAMETER_CHARACTERS} characters, got {size}"
        )


def is_large(response: InferResponse, options: OutputOptions, *, compressed: bool) -> bool:
    """Whether a worker should encode a response, by the sizes and requested forms of its outputs."""
    size = 0
    for tensor in response.outputs:
        size += tensor.nbytes
    if size * _CLASSIFICATION_COST <= MAX_INLINE_BYTES:
        return False
    cost = 0
    for tensor in response.outputs:
        name = tensor.name
        if name in options.parts:
            continue
        if options.classes.get(name):
            cost += tensor.nbytes * _CLASSIFICATION_COST
        elif compressed or not options.binary.get(name, options.binary_default):
            cost += tensor.nbytes
    return cost > MAX_INLINE_BYTES


def describe_response(
    response: InferResponse, options: OutputOptions, labels: Mapping[str, Sequence[str]], *, batched: bool, coding: str
) -> tuple[dict[str, Any], list[Buffer]]:
    """Return the arguments of `write_response`. Outputs with shared memory have been written there already.

    The bytes of binary outputs are included only if the body is to be compressed.
    """
    outputs, parts = [], []
    for tensor in response.outputs:
        classes = options.classes.get(tensor.name, 0)
        binary = options.binary.get(tensor.name, options.binary_default)
        placed = tensor.name in options.parts
        sent = not placed and bool(classes or not binary or coding)
        outputs.append(
            {
                "name": tensor.name,
                "datatype": tensor.datatype,
                "shape": tensor.shape,
                "size": tensor.nbytes,
                "sent": sent,
                "binary": binary,
                "placed": placed,
                "classes": classes,
                "labels": list(labels.get(tensor.name, ())) if classes else [],
            }
        )
        if sent:
            parts.append(tensor.data)
    head = {
        "id": response.id,
        "model_name": response.model_name,
        "model_version": response.model_version,
        "parameters": response.parameters,
        "outputs": outputs,
        "batched": batched,
        "coding": coding,
    }
    return head, parts


def write_response(described: Mapping[str, Any], parts: Sequence[Buffer]) -> list[Buffer]:
    """Encode the body of a response: its JSON, then the binary outputs that were sent or made; or all, compressed.

    Raises ConchError as `encode_response` does. The first part of the result is the length of the JSON.
    """
    sent = iter(parts)
    tensors = []
    options = OutputOptions()
    labels: dict[str, Sequence[str]] = {}
    placed: set[str] = set()
    for output in described["outputs"]:
        name = output["name"]
        # The bytes of outputs that are not sent are never accessed.
        data = next(sent) if output["sent"] else np.empty(output["size"], np.uint8).data
        tensors.append(Tensor(name, output["datatype"], output["shape"], data))
        options.binary[name] = output["binary"]
        if output["classes"]:
            options.classes[name] = output["classes"]
            labels[name] = output["labels"]
        if output["placed"]:
            placed.add(name)
    options.placed = placed
    response = InferResponse(
        described["model_name"],
        described["model_version"],
        tensors,
        id=described["id"],
        parameters=described["parameters"],
    )
    document, binary = encode_response(
        response,
        options,
        lambda tensor, count: classify(tensor, count, labels[tensor.name], described["batched"]),
    )
    length = b"%d" % (len(document) if any(map(len, binary)) else 0)
    if described["coding"]:
        return [length, *compress([document, *binary], described["coding"].encode())]
    made = [data for data, tensor in zip(binary, _binary(described), strict=True) if tensor["sent"]]
    return [length, document, *made]


def _binary(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [output for output in described["outputs"] if output["binary"] and not output["placed"]]
