"""Limits of model configurations, so that any value in any field takes bounded time and memory.

Values that allocate nothing, such as `priority_levels`, have no limit. A value above its limit is refused with the
field, the value and the limit.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from conch.base.errors import ConfigError
from conch.domain.tensor import BYTES, ITEM_SIZES
from conch.domain.triton_messages import ModelConfig as ConfigMessage
from conch.domain.triton_messages import datatype_name

MAX_CONFIG_BYTES = 2 << 20  # of config.pbtxt, and of the `config` parameter of a load
MAX_LIST_ENTRIES = 10_000  # of one repeated field or map
MAX_ENTRIES = 25_000  # of all lists of a configuration together
MAX_DIMS = 64  # numpy's
MAX_INSTANCES = 1024  # of one model version
MAX_DIRECT_SLOTS = 4096  # sequences that share a batch of the direct strategy; empty slots are filled in each batch
MAX_STEPS = 256  # of an ensemble
MAX_WARMUP_REQUESTS = 100_000  # of one sample: batch_size * count
MAX_WARMUP_BATCH = 4096
MAX_GENERATED_BYTES = 512 << 20  # of data that the server creates: all initial states; warm-up data of a batch
MAX_WARMUP_BYTES = 2 << 30  # of warm-up data of all instances, which warm up concurrently
MAX_STRING_CHARS = 4096  # of names and paths; values of parameters are limited by MAX_CONFIG_BYTES
MAX_TAG_BYTES = 4096  # of all metric_tags, which every series of the model repeats
MAX_QUOTED_CHARS = 200  # of texts that messages quote

_DIM_FIELDS = frozenset({"dims", "shape"})


def check_file_size(path: Path, size: int) -> None:
    """Raise ConfigError for a configuration file above the size limit."""
    if size > MAX_CONFIG_BYTES:
        raise ConfigError(f"{path}: has {size} bytes; a configuration has at most {MAX_CONFIG_BYTES}")


def check_text_size(text: str, where: str) -> None:
    """Raise ConfigError for a configuration text above the size limit."""
    if len(text) > MAX_CONFIG_BYTES:
        raise ConfigError(f"{where}: has {len(text)} characters; a configuration has at most {MAX_CONFIG_BYTES} bytes")


def shortened(text: str) -> str:
    """Return a text for a message, with the middle of a long text left out."""
    if len(text) <= MAX_QUOTED_CHARS:
        return text
    return f"{text[: MAX_QUOTED_CHARS - 20]}…{text[-20:]}"


def check_limits(message: ConfigMessage, name: str) -> None:
    """Check the configuration of model `name`, complete or not.

    Raises ConfigError naming the field, its value and the limit.
    """
    total = 0
    for at, field, value in _fields(message, ""):
        if isinstance(value, str):
            if len(value) > MAX_STRING_CHARS and field.name != "string_value":
                raise ConfigError(
                    f"{at} of model '{name}' has {len(value)} characters; the limit is {MAX_STRING_CHARS}"
                )
        elif field.is_repeated:
            total += len(value)
            is_dims = field.name in _DIM_FIELDS and field.type == FieldDescriptor.TYPE_INT64
            limit = MAX_DIMS if is_dims else MAX_LIST_ENTRIES
            if len(value) > limit:
                raise ConfigError(f"{at} of model '{name}' has {len(value)} entries; the limit is {limit}")
            if total > MAX_ENTRIES:
                raise ConfigError(
                    f"the lists of the configuration of model '{name}' have more than {MAX_ENTRIES} entries together "
                    f"(counted up to {at})"
                )
    instances = _count_instances(message, name)
    _check_sequences(message, name)
    for warmup in message.model_warmup:
        _check_warmup(warmup, name, instances)
    steps = len(message.ensemble_scheduling.step)
    if steps > MAX_STEPS:
        raise ConfigError(f"ensemble_scheduling.step of model '{name}' has {steps} entries; the limit is {MAX_STEPS}")
    tags = sum(len(key.encode()) + len(value.encode()) for key, value in message.metric_tags.items())
    if tags > MAX_TAG_BYTES:
        raise ConfigError(
            f"metric_tags of model '{name}' have {tags} bytes together; the limit is {MAX_TAG_BYTES}, because every "
            "series of the model repeats them"
        )


def _fields(message: Any, path: str) -> Iterator[tuple[str, FieldDescriptor, Any]]:
    """Yield path, descriptor and value of every list, map and string that is set, also in nested messages."""
    for field, value in message.ListFields():
        at = f"{path}{field.name}"
        if not field.is_repeated:
            yield from _nested(at, field, value)
            continue
        yield at, field, value
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            for key, item in value.items():
                yield f"key of {at}", entry.fields_by_name["key"], key
                yield from _nested(f"{at}[{shortened(str(key))}]", entry.fields_by_name["value"], item)
        elif entry is not None or field.type == FieldDescriptor.TYPE_STRING:
            for index, item in enumerate(value):
                yield from _nested(f"{at}[{index}]", field, item)


def _nested(at: str, field: FieldDescriptor, value: Any) -> Iterator[tuple[str, FieldDescriptor, Any]]:
    if isinstance(value, str):
        yield at, field, value
    elif field.message_type is not None:
        yield from _fields(value, f"{at}.")


def _count_instances(message: ConfigMessage, name: str) -> int:
    """Return the number of instances of a version, as far as the configuration specifies it."""
    total = 0
    for index, group in enumerate(message.instance_group):
        total += max(group.count, 1) * max(len(group.gpus), 1)
        if total > MAX_INSTANCES:
            raise ConfigError(
                f"instance_group[{index}] of model '{name}' has count {group.count}"
                f"{f' on each of {len(group.gpus)} GPUs' if len(group.gpus) > 1 else ''}, which makes {total} "
                f"instances in all; a model has at most {MAX_INSTANCES}"
            )
    return total


def _check_sequences(message: ConfigMessage, name: str) -> None:
    if not message.HasField("sequence_batching"):
        return
    batching = message.sequence_batching
    candidates = batching.oldest.max_candidate_sequences
    if candidates < 0:
        raise ConfigError(
            f"sequence_batching.oldest.max_candidate_sequences of model '{name}' must not be negative, "
            f"it is {candidates}"
        )
    if not batching.HasField("oldest") and message.max_batch_size > MAX_DIRECT_SLOTS:
        raise ConfigError(
            f"max_batch_size of model '{name}' is {message.max_batch_size}; with the direct strategy of "
            f"sequence_batching, which keeps a slot for each sequence of a batch, the limit is {MAX_DIRECT_SLOTS}"
        )
    total = 0
    for index, state in enumerate(batching.state):
        initial = state.initial_state[0] if state.initial_state else state
        total += _size(initial, 1)
        if total > MAX_GENERATED_BYTES:
            raise ConfigError(
                f"sequence_batching.state[{index}] of model '{name}' with dims {list(initial.dims)} brings the initial "
                f"states to {total} bytes; the limit is {MAX_GENERATED_BYTES}"
            )


def _check_warmup(warmup: Any, name: str, instances: int) -> None:
    at = f"model_warmup '{shortened(warmup.name)}' of model '{name}'"
    requests = warmup.batch_size * max(warmup.count, 1)
    if warmup.batch_size > MAX_WARMUP_BATCH:
        raise ConfigError(f"{at}: batch_size is {warmup.batch_size}; the limit is {MAX_WARMUP_BATCH}")
    if requests > MAX_WARMUP_REQUESTS:
        raise ConfigError(
            f"{at}: batch_size {warmup.batch_size} times count {warmup.count} makes {requests} requests; "
            f"the limit is {MAX_WARMUP_REQUESTS}"
        )
    size = 0
    for key, tensor in warmup.inputs.items():
        size += _size(tensor, max(warmup.batch_size, 1))
        if size > MAX_GENERATED_BYTES:
            raise ConfigError(
                f"{at}: input '{shortened(key)}' with dims {list(tensor.dims)} brings a batch of {warmup.batch_size} "
                f"to {size} bytes; the limit is {MAX_GENERATED_BYTES}"
            )
    if size * instances > MAX_WARMUP_BYTES:
        raise ConfigError(
            f"{at}: a batch has {size} bytes, which {instances} instances need at the same time; "
            f"the limit is {MAX_WARMUP_BYTES} in total"
        )


def _size(tensor: Any, items: int) -> int:
    """Return the bytes of `items` items of a tensor; elements of BYTES are empty."""
    datatype = datatype_name(tensor.data_type)
    element_bytes = 4 if datatype == BYTES else ITEM_SIZES.get(datatype, 8)
    return int(element_bytes * items * prod(max(dim, 1) for dim in tensor.dims))
