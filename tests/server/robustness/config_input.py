"""Configurations of models, right ones with a few fields changed to absurd values."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor

from conch.domain.triton_messages import ModelConfig as ConfigMessage

_INTEGERS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOATS = (0.0, 0.5, -1.0, 1e308, float("inf"), float("nan"))
_STRINGS = (
    "", "IN", "OUT", "STATE", "m0", "python", "onnxruntime", "identity", "ensemble", "KIND_GPU", "../../etc/passwd",
    "/etc/passwd", "/dev/zero", "labels.txt", "\0", "ü" * 30, "a\nb", "{" * 100,
)  # fmt: skip
_LONG_STRINGS = ("ü" * 300, "x" * 5_000, "x" * 100_000, "{" * 1_000, "9" * 5_000)
_LENGTHS = (1, 1, 1, 2, 3, 30, 300)
_LONG = (3_000, 12_000, 50_000)
_FORMS = (
    "IN OUT",
    "IN OUT dynamic",
    "IN OUT direct",
    "IN OUT oldest",
    "IN OUT warmup",
    "ensemble",
)


def right(random: Random) -> ConfigMessage:
    """A configuration that is served as it is."""
    form = random.choice(_FORMS)
    message = ConfigMessage()
    for tensors, name in ((message.input, "IN"), (message.output, "OUT")):
        tensors.add(name=name, data_type=random.choice((11, 8, 13)), dims=[random.choice((1, 4, -1))])
    message.output[0].data_type = message.input[0].data_type
    message.output[0].dims[:] = message.input[0].dims
    if form == "ensemble":
        message.platform = "ensemble"
        step = message.ensemble_scheduling.step.add(model_name="part")
        step.input_map["IN"] = "IN"
        step.output_map["OUT"] = "OUT"
        return message
    message.backend = "identity"
    message.max_batch_size = random.choice((1, 4, 64))
    if "dynamic" in form:
        message.dynamic_batching.default_priority_level = 1
        message.dynamic_batching.priority_levels = 2
    elif "direct" in form:
        message.sequence_batching.direct.SetInParent()
    elif "oldest" in form:
        message.sequence_batching.oldest.max_candidate_sequences = 4
    elif "warmup" in form:
        warmup = message.model_warmup.add(name="w", batch_size=1)
        tensor = warmup.inputs["IN"]
        tensor.data_type, tensor.zero_data = message.input[0].data_type, True
        tensor.dims.append(4 if message.input[0].dims[0] == -1 else message.input[0].dims[0])
    return message


def changed(random: Random, message: ConfigMessage) -> ConfigMessage:
    """Change a few fields to any value of their type."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        _change(random, message, 0)
    return message


def as_text(random: Random, message: ConfigMessage) -> str:
    """Return the text form, sometimes broken."""
    return _broken(random, text_format.MessageToString(message, as_one_line=random.random() < 0.5))


def as_json(random: Random, message: ConfigMessage) -> str:
    """Return the JSON form, sometimes broken or with values that no message can have."""
    text = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)
    if random.random() < 0.3:
        document = json.loads(text)
        field = random.choice(ConfigMessage.DESCRIPTOR.fields).name
        document[field] = random.choice(_JSON)(random)
        text = json.dumps(document)
    return _broken(random, text)


_JSON: tuple[Callable[[Random], Any], ...] = (
    lambda random: random.choice((2**64, -(2**64), 1e308, float("nan"), float("inf"), True, None, "", "9" * 4000)),
    lambda random: [[[[]]]] * random.choice(_LENGTHS),
    lambda random: {"x" * random.choice((1, 10_000)): {}},
    lambda random: [{}] * random.choice(_LONG),
    lambda random: _nested(random.choice((10, 300))),
)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": [value]}
    return value


def _broken(random: Random, text: str) -> str:
    """Break one text of ten: cut it, repeat a piece of it very often, nest it."""
    if random.random() < 0.9 or not text:
        return text
    at = random.randrange(len(text))
    end = min(at + random.choice((1, 3, 20)), len(text))
    piece = random.choice((text[at:end], "{", "[", "x", '"', "9", "input {", '{"a":', "#", "\n", "\0"))
    times = random.choice((0, 1, 1_000, 20_000))
    return text[:at] + piece * times + text[at if times else end :]


def _change(random: Random, message: Any, depth: int) -> None:
    if not message.DESCRIPTOR.fields:
        return
    field = random.choice(message.DESCRIPTOR.fields)
    while field.name == "name" and depth == 0:  # the folder's, or it is refused before anything else
        field = random.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(random, getattr(message, field.name), field, depth)
    elif field.is_repeated:
        _change_list(random, getattr(message, field.name), field, depth)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        if depth < 6:
            _change(random, inner, depth + 1)
    else:
        setattr(message, field.name, _scalar(random, field))


def _change_list(random: Random, values: Any, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is None:
        if random.random() < 0.5:
            del values[:]
        value = _scalar(random, field)
        values.extend([value] * _length(random, len(str(value))))
        return
    if values and random.random() < 0.7:
        _change(random, random.choice(values), depth + 1)
        return
    first = values.add()
    _change(random, first, depth + 1)
    for _ in range(_length(random, first.ByteSize() + 1) - 1):
        values.add().CopyFrom(first)


def _change_map(random: Random, values: Any, field: FieldDescriptor, depth: int) -> None:
    entry = field.message_type.fields_by_name
    key, inner = _scalar(random, entry["key"]), entry["value"].message_type
    if inner is None:
        value = _scalar(random, entry["value"])
        size = len(str(value))
    else:
        _change(random, values[key], depth + 1)
        value = values[key]
        size = value.ByteSize()
    for number in range(_length(random, len(str(key)) + size)):
        near = f"{key}{number or ''}" if isinstance(key, str) else max(key - number, 0)
        if inner is None:
            values[near] = value
        elif near != key:
            values[near].CopyFrom(value)


def _length(random: Random, size: int) -> int:
    """Return a number of values of that size, few enough that generating them is not slower than reading them."""
    wanted = random.choice(_LONG if random.random() < 0.05 else _LENGTHS)
    return max(min(wanted, 500_000 // max(size, 1)), 1)


def _scalar(random: Random, field: FieldDescriptor) -> Any:
    if field.cpp_type in _INTEGERS:
        least, most = _INTEGERS[field.cpp_type]
        value = random.choice((0, 1, 2, 7, 64, 1_000, 5_000, 100_000, 2**31 - 1, 2**31, 2**40, 2**62, least, most, -1))
        return min(max(value, least), most)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        numbers = [value.number for value in field.enum_type.values]
        return random.choice((*numbers, 9_999) if not field.enum_type.is_closed else numbers)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return random.choice(_FLOATS)
    text = random.choice(_LONG_STRINGS if random.random() < 0.02 else _STRINGS)
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text
