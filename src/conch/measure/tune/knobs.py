"""The knobs: what a value of each writes to a model configuration, as a table.

A configuration is the document that the server's config endpoint returns (the JSON form of `ModelConfig`).
"""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from conch.measure.tune.space import Dimension, Value

FIELD_PREFIX = "field:"
Document: TypeAlias = dict[str, Any]

LOAD = "load"
"""The name of the dimension that is the load rather than the model: concurrent users, or requests per second."""

_ONNX_BACKENDS = ("onnxruntime", "openvino")
_THREAD_PARAMETER = {"onnxruntime": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}
OFF = "off"
"""The queue delay of a model without dynamic batching."""
_DELAYS_US: tuple[Value, ...] = (OFF, 0, 500, 2000)


def write_field(document: dict[str, Any], path: str, value: Value) -> None:
    """Write a value at a path of names; a list on the way is entered in all its elements.

    Raises ValueError if the path leads through a scalar.
    """
    first, _, rest = path.partition(".")
    if not rest:
        document[first] = list(value) if isinstance(value, tuple) else value
        return
    inner = document.setdefault(first, {})
    for element in inner if isinstance(inner, list) else [inner]:
        if not isinstance(element, dict):
            raise ValueError(f"'{first}' of '{path}' is not a message")
        write_field(element, rest, value)


def read_field(document: dict[str, Any], path: str) -> Value:
    """Return the value at a path, of the first element where a list is on the way; None if it has none."""
    value: Any = document
    for name in path.split("."):
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, list):
        return tuple(value)
    return None if isinstance(value, dict) else value


class KnobError(ValueError):
    """A knob cannot have this value. The message says which ones it can have."""


@dataclass(frozen=True, slots=True)
class Knob:
    """`backends` is None for all. `write` changes a document in place; `values` are those tried by default.

    `engine`: the value stands in the model.json of an engine rather than in config.pbtxt.
    """

    name: str
    help: str
    fields: str
    write: Callable[[Document, Value], None]
    read: Callable[[Document], Value]
    values: Callable[[Document, int], tuple[Value, ...]]  # from a document and a number of cores
    backends: tuple[str, ...] | None = None
    ordered: bool = True
    kind: type = int
    default: bool = True  # tuned unless the user chooses knobs
    engine: bool = False

    def applies(self, document: Document) -> bool:
        """Return whether models like this one have the knob."""
        if is_ensemble(document):
            return False
        backend = backend_of(document)
        return backend not in ENGINE_BACKENDS if self.backends is None else backend in self.backends


def is_ensemble(document: Document) -> bool:
    """Return whether a configuration is an ensemble's, which has no instances."""
    return "ensemble_scheduling" in document or document.get("platform") == "ensemble"


def backend_of(document: Document) -> str:
    """Return the backend's name, also of a configuration that has a platform in its place."""
    backend = document.get("backend") or document.get("platform", "").partition("_")[0]
    return {"pytorch": "pytorch", "onnxruntime": "onnxruntime"}.get(backend, str(backend))


def composing_models(document: Document) -> list[str]:
    """Return the models of an ensemble's steps, each once, in order."""
    steps = document.get("ensemble_scheduling", {}).get("step", [])
    return list(dict.fromkeys(step["model_name"] for step in steps))


def with_settings(document: Document, settings: Mapping[str, Value]) -> Document:
    """Return a copy of a configuration with the values of its knobs. Unknown names and None change nothing.

    Knobs are written in the order of the table: later ones depend on the backend and the batch size.
    """
    changed = copy.deepcopy(document)
    for name, knob in KNOBS.items():
        if not knob.engine and (value := settings.get(name)) is not None:
            knob.write(changed, value)
    for name, value in settings.items():
        if name.startswith(FIELD_PREFIX) and value is not None:
            write_field(changed, name.removeprefix(FIELD_PREFIX), value)
    _fit_preferred_sizes(changed)
    return changed


def dimension(name: str, document: Document, cores: int, chosen: Sequence[Value] | None = None) -> Dimension | None:
    """Return the dimension of a knob for a model: the current value among those tried.

    None if the model does not have the knob. Raises KnobError for a value of a wrong kind.
    """
    if name.startswith(FIELD_PREFIX):
        current = read_field(document, name.removeprefix(FIELD_PREFIX))
        known = () if current is None else (current,)
        return Dimension(name, tuple(dict.fromkeys((*(chosen or ()), *known))), ordered=False)
    knob = KNOBS[name]
    if not knob.applies(document):
        return None
    if knob.engine and chosen is None:
        return None
    values = list(knob.values(document, cores) if chosen is None else chosen)
    current = knob.read(document)
    if current not in values and not knob.engine:
        values.append(current)
    return Dimension(name, tuple(_sorted(values) if knob.ordered else values), ordered=knob.ordered)


def current_settings(document: Document, names: Sequence[str]) -> dict[str, Value]:
    """Return the values that knobs have in a configuration."""
    values = {name: KNOBS[name].read(document) for name in names if name in KNOBS and KNOBS[name].applies(document)}
    fields = [name for name in names if name.startswith(FIELD_PREFIX)]
    return values | {name: read_field(document, name.removeprefix(FIELD_PREFIX)) for name in fields}


def parse_values(name: str, text: str) -> tuple[Value, ...]:
    """Read `1,2,4`, `1:4` (all whole numbers), `off,100`, or `4+8,8` (lists of batch sizes). Raises KnobError.

    Values of a field are JSON where they can be, such as 1, 0.5 and true, else strings.
    """
    if name.startswith(FIELD_PREFIX):
        return tuple(dict.fromkeys(map(_field_value, text.split(","))))
    if name not in KNOBS:
        raise KnobError(f"unknown knob '{name}'; known: {', '.join(KNOBS)}")
    values: list[Value] = []
    for part in text.split(","):
        low, colon, high = part.partition(":")
        if colon and low.isdecimal() and high.isdecimal() and KNOBS[name].kind is int:
            if int(low) > int(high):
                raise KnobError(f"knob '{name}': '{part}' is empty; a range is written LOW:HIGH, such as {high}:{low}")
            values.extend(range(int(low), int(high) + 1))
        else:
            values.append(_parse(KNOBS[name], part.strip()))
    if name == "instances" and 0 in values:
        raise KnobError(f"knob '{name}': '{text}' has 0, but a model is served by at least 1")
    return tuple(dict.fromkeys(values))


def _field_value(text: str) -> Value:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float | str) else text


def _parse(knob: Knob, text: str) -> Value:
    if text == OFF and knob.name in ("queue_delay_us", "preferred_batch_sizes"):
        return OFF if knob.name == "queue_delay_us" else ()
    try:
        if knob.kind is tuple:
            return tuple(int(size) for size in text.split("+"))
        if knob.kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if knob.kind is int:
            number = int(text)
            if number < 0:
                raise ValueError
            return number
        return knob.kind(text) if text else _refuse(knob, text)
    except (ValueError, KeyError):
        return _refuse(knob, text)


def _refuse(knob: Knob, text: str) -> Value:
    form = {int: "a whole number", tuple: "sizes such as 4+8", bool: "true or false", float: "a number"}
    raise KnobError(f"knob '{knob.name}': '{text}' is not valid; expected {form.get(knob.kind, 'a name')}")


def _sorted(values: list[Value]) -> list[Value]:
    return sorted(values, key=lambda value: (-1,) if value == OFF else value if isinstance(value, tuple) else (value,))


def _powers(limit: int) -> tuple[int, ...]:
    """Return 1, 2, 4 … up to a limit, and the limit."""
    return tuple(sorted({1 << n for n in range(limit.bit_length()) if 1 << n <= limit} | {limit}))


# Reading and writing the fields.


def _groups(document: Document) -> list[Document]:
    groups: list[Document] = document.setdefault("instance_group", [])
    if not groups:
        groups.append({"kind": "KIND_CPU", "count": 1})
    return groups


def _read_instances(document: Document) -> Value:
    groups = document.get("instance_group") or [{}]
    return int(groups[0].get("count") or 1)


def _write_instances(document: Document, value: Value) -> None:
    for group in _groups(document):
        group["count"] = value


def _write_kind(document: Document, value: Value) -> None:
    for group in _groups(document):
        group["kind"] = value
        if value == "KIND_CPU":
            group["gpus"] = []


def _read_kind(document: Document) -> Value:
    return str((document.get("instance_group") or [{}])[0].get("kind") or "KIND_AUTO")


def _write_max_batch(document: Document, value: Value) -> None:
    document["max_batch_size"] = value


def _max_batches(document: Document, _cores: int) -> tuple[Value, ...]:
    current = int(document.get("max_batch_size", 0))
    return tuple(sorted({max(1, current // 4), current, current * 2})) if current else (0,)


def _read_delay(document: Document) -> Value:
    batching = document.get("dynamic_batching")
    return OFF if batching is None else int(batching.get("max_queue_delay_microseconds", 0))


def _write_delay(document: Document, value: Value) -> None:
    if value == OFF:
        document.pop("dynamic_batching", None)
    elif document.get("max_batch_size"):
        document.setdefault("dynamic_batching", {})["max_queue_delay_microseconds"] = value


def _delays(document: Document, _cores: int) -> tuple[Value, ...]:
    # A model with sequences has no dynamic batching.
    if not document.get("max_batch_size") or "sequence_batching" in document:
        return (_read_delay(document),)
    return _DELAYS_US


def _read_preferred(document: Document) -> Value:
    return tuple(document.get("dynamic_batching", {}).get("preferred_batch_size", ()))


def _write_preferred(document: Document, value: Value) -> None:
    if "dynamic_batching" in document:
        document["dynamic_batching"]["preferred_batch_size"] = list(value) if isinstance(value, tuple) else []


def _preferred_sizes(document: Document, _cores: int) -> tuple[Value, ...]:
    largest = int(document.get("max_batch_size", 0))
    return ((), (largest,)) if largest else ((),)


def _fit_preferred_sizes(document: Document) -> None:
    """Remove preferred sizes that the maximum does not allow."""
    if batching := document.get("dynamic_batching"):
        sizes = batching.get("preferred_batch_size", [])
        batching["preferred_batch_size"] = [size for size in sizes if size <= document.get("max_batch_size", 0)]


def _parameter(document: Document, name: str) -> str:
    return str(document.get("parameters", {}).get(name, {}).get("string_value", ""))


def _set_parameter(document: Document, name: str, value: Value) -> None:
    document.setdefault("parameters", {})[name] = {"string_value": str(value)}


def _read_threads(document: Document) -> Value:
    text = _parameter(document, _THREAD_PARAMETER[backend_of(document)])
    return int(text) if text.isdecimal() else 0


def _write_threads(document: Document, value: Value) -> None:
    for name in _THREAD_PARAMETER.values():
        document.get("parameters", {}).pop(name, None)
    if value:
        _set_parameter(document, _THREAD_PARAMETER[backend_of(document)], value)


def _write_backend(document: Document, value: Value) -> None:
    if backend_of(document) == value:
        return
    threads = _read_threads(document)
    _write_threads(document, 0)
    document["backend"] = value
    document["platform"] = "onnxruntime_onnx" if value == "onnxruntime" else ""
    document["default_model_filename"] = document.get("default_model_filename") or "model.onnx"
    _write_threads(document, threads)


def _is_onnx(document: Document) -> bool:
    filename = document.get("default_model_filename") or ""
    return backend_of(document) == "onnxruntime" or filename.endswith(".onnx")


def _onnx_backends(document: Document, _cores: int) -> tuple[Value, ...]:
    return _ONNX_BACKENDS if _is_onnx(document) else (backend_of(document),)


def _parameter_knob(
    name: str, parameter: str, backend: str, text: str, values: tuple[Value, ...], *, ordered: bool = True
) -> Knob:
    """Return the knob of a parameter that one backend has; other backends ignore the value."""

    def read(document: Document) -> Value:
        value = _parameter(document, parameter)
        return int(value) if ordered and value.isdecimal() else value or None

    def write(document: Document, value: Value) -> None:
        if backend_of(document) == backend:
            _set_parameter(document, parameter, value)

    return Knob(
        name,
        text,
        f"parameters.{parameter}",
        write,
        read,
        lambda _document, _cores: values,
        # `backend` may change it.
        backends=_ONNX_BACKENDS,
        ordered=ordered,
        kind=int if ordered else str,
        default=False,
    )


def _engine_knob(name: str, keys: Mapping[str, str], text: str, kind: type = int) -> Knob:
    key = " / ".join(dict.fromkeys(keys.values()))
    return Knob(
        name,
        text,
        f"model.json: {key}",
        lambda document, value: document.__setitem__(keys[backend_of(document)], value),
        lambda _document: None,
        lambda _document, _cores: (),
        backends=tuple(keys),
        kind=kind,
        default=False,
        engine=True,
    )


ENGINE_KEYS: dict[str, dict[str, str]] = {
    "max_sequences": {
        "openvino_genai": "max_num_seqs",
        "vllm": "max_num_seqs",
        "tensorrtllm": "max_batch_size",
    },
    "kv_cache": {"openvino_genai": "cache_size", "vllm": "gpu_memory_utilization"},
    "chunked_prefill": {
        "openvino_genai": "dynamic_split_fuse",
        "vllm": "enable_chunked_prefill",
        "tensorrtllm": "enable_chunked_prefill",
    },
    "step_tokens": {
        "openvino_genai": "max_num_batched_tokens",
        "vllm": "max_num_batched_tokens",
        "tensorrtllm": "max_num_tokens",
    },
}
"""Knob of an engine → backend → key of its model.json."""
ENGINE_BACKENDS = frozenset({"openvino_genai", "vllm", "tensorrtllm", "scripted"})
"""They batch step by step: batch sizes, queue delays and instances are not theirs."""

_TABLE = (
    Knob(
        "backend",
        "runs an ONNX file with onnxruntime or with OpenVINO",
        "backend, platform, default_model_filename",
        _write_backend,
        backend_of,
        _onnx_backends,
        backends=_ONNX_BACKENDS,
        ordered=False,
        kind=str,
        default=False,
    ),
    Knob(
        "instances",
        "instances of the model",
        "instance_group.count",
        _write_instances,
        _read_instances,
        lambda _document, cores: _powers(2 * cores),
    ),
    Knob(
        "instance_kind",
        "where instances run: KIND_CPU, KIND_GPU",
        "instance_group.kind",
        _write_kind,
        _read_kind,
        lambda document, _cores: (_read_kind(document),),
        ordered=False,
        kind=str,
        default=False,
    ),
    Knob(
        "threads",
        "threads of one instance; 0: the instances share the cores",
        "parameters.intra_op_thread_count / INFERENCE_NUM_THREADS",
        _write_threads,
        _read_threads,
        lambda _document, cores: (0, *_powers(cores)),
        backends=_ONNX_BACKENDS,
    ),
    _parameter_knob(
        "inter_op_threads", "inter_op_thread_count", "onnxruntime", "threads that run operators in parallel", (1, 2)
    ),
    _parameter_knob("streams", "NUM_STREAMS", "openvino", "inferences that an instance runs at a time", (1, 2)),
    _parameter_knob(
        "precision",
        "INFERENCE_PRECISION_HINT",
        "openvino",
        "arithmetic: f32, bf16, f16; the answers change",
        ("f32", "bf16"),
        ordered=False,
    ),
    Knob(
        "max_batch_size",
        "largest batch",
        "max_batch_size",
        _write_max_batch,
        lambda document: int(document.get("max_batch_size", 0)),
        _max_batches,
    ),
    Knob(
        "queue_delay_us",
        "how long a request may wait for others, in microseconds; off: no dynamic batching",
        "dynamic_batching.max_queue_delay_microseconds",
        _write_delay,
        _read_delay,
        _delays,
    ),
    Knob(
        "preferred_batch_sizes",
        "sizes of batches that run at once: 4+8",
        "dynamic_batching.preferred_batch_size",
        _write_preferred,
        _read_preferred,
        _preferred_sizes,
        ordered=False,
        kind=tuple,
        default=False,
    ),
    _engine_knob("max_sequences", ENGINE_KEYS["max_sequences"], "sequences that an engine generates at a time"),
    _engine_knob("kv_cache", ENGINE_KEYS["kv_cache"], "KV cache: GiB (OpenVINO), share of GPU memory (vLLM)", float),
    _engine_knob("chunked_prefill", ENGINE_KEYS["chunked_prefill"], "splits long prompts over steps", bool),
    _engine_knob("step_tokens", ENGINE_KEYS["step_tokens"], "tokens of one step of an engine"),
)
KNOBS: dict[str, Knob] = {knob.name: knob for knob in _TABLE}
