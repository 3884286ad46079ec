"""Limits of configurations: messages, and time to refuse."""

import json
from pathlib import Path
from time import process_time

import pytest

from conch.base.errors import ConfigError
from conch.domain.config.resolve import resolve
from conch.domain.config.size_limits import MAX_CONFIG_BYTES
from conch.server.backends.identity import IdentityBackend
from conch.server.repository.override import Override
from conch.server.repository.store import Repository

BIG = 2**31 - 1
WARMUP = 'model_warmup {{ name: "w" batch_size: {} count: {} inputs {{ key: "IN" value {{ {} }} }} }}'
LARGE = f"data_type: TYPE_INT8 dims: {2**26} zero_data: true"
ONE = "data_type: TYPE_FP32 dims: 1 zero_data: true"
MAPS = 'input_map { key: "a" value: "IN" } output_map { key: "b" value: "OUT" }'


def read(root: Path, text: str) -> None:
    """Read and finish a configuration as a load does."""
    (root / "m" / "1").mkdir(parents=True, exist_ok=True)
    (root / "m" / "config.pbtxt").write_text(text)
    files = Repository([root]).read("m")
    resolve(files.document, backend=None if files.config.is_ensemble else IdentityBackend())


def identity(extra: str, batch: int = 0) -> str:
    return (
        f'backend: "identity" max_batch_size: {batch} '
        'input { name: "IN" data_type: TYPE_FP32 dims: 1 } '
        f'output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }} {extra}'
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (identity(f"instance_group {{ count: {BIG} }}"), rf"instance_group\[0\] of model 'm' has count {BIG}.*1024"),
        (identity("instance_group { count: 600 } instance_group { count: 500 }"), "makes 1100 instances in all"),
        (identity("instance_group { gpus: [" + ",".join(["0"] * 2000) + "] }"), "on each of 2000 GPUs"),
        (
            identity("sequence_batching { direct { } }", BIG),
            f"max_batch_size of model 'm' is {BIG}; with the direct strategy .* the limit is 4096",
        ),
        (identity("sequence_batching { }", BIG), "with the direct strategy"),
        (
            identity("sequence_batching { oldest { max_candidate_sequences: -1 } }", 4),
            "max_candidate_sequences of model 'm' must not be negative, it is -1",
        ),
        (identity(WARMUP.format(2**32 - 1, 1, ONE), 4), "batch_size is 4294967295; the limit is 4096"),
        (identity(WARMUP.format(4, 2**32 - 1, ONE), 4), "makes 17179869180 requests; the limit is 100000"),
        (
            identity(WARMUP.format(1, 1, f"data_type: TYPE_FP32 dims: {2**62} random_data: true")),
            rf"input 'IN' with dims \[{2**62}\] brings a batch of 1 to {2**64} bytes",
        ),
        (
            identity(WARMUP.format(4, 1, LARGE) + "instance_group { count: 9 }", 4),
            "which 9 instances need at the same time",
        ),
        (
            identity(
                'sequence_batching { state { input_name: "a" output_name: "b" data_type: TYPE_FP32 '
                f"dims: {2**40} }} }}"
            ),
            r"sequence_batching.state\[0\] of model 'm' with dims .* brings the initial states to 4398046511104 bytes",
        ),
        (identity(f'input {{ name: "i" data_type: TYPE_FP32 dims: {[1] * 65} }}'), r"input\[1\].dims .*64"),
        (identity(f"dynamic_batching {{ preferred_batch_size: {[1] * 10_001} }}", 4), "has 10001 entries"),
        (
            identity("".join(f'parameters {{ key: "{n}" value {{ string_value: "" }} }}' for n in range(10_001))),
            "parameters of model 'm' has 10001 entries",
        ),
        (
            identity('input { name: "x" data_type: TYPE_FP32 dims: [1, 1, 1, 1] }' * 8_000),
            "more than 25000 entries together",
        ),
        (identity(f'output {{ name: "{"x" * 5000}" }}'), r"output\[1\].name of model 'm' has 5000"),
        (identity(f'metric_tags {{ key: "a" value: "{"x" * 4096}" }}'), "metric_tags of model 'm' have 4097 bytes"),
        (
            'platform: "ensemble" ensemble_scheduling { ' + f'step {{ model_name: "x" {MAPS} }}' * 257 + " }",
            "ensemble_scheduling.step of model 'm' has 257 entries; the limit is 256",
        ),
        ("#" * (MAX_CONFIG_BYTES + 1), f"has {MAX_CONFIG_BYTES + 1} bytes; a configuration has at most"),
    ],
)
def test_values_above_a_limit_are_refused_with_field_value_and_limit(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as raised:
        read(tmp_path, text)
    assert len(raised.value.message) < 2_000


@pytest.mark.parametrize(
    "text",
    [
        identity(f"dynamic_batching {{ priority_levels: {2**64 - 1} default_priority_level: 1 }}", 4),
        identity(f"dynamic_batching {{ default_queue_policy {{ max_queue_size: {2**32 - 1} }} }}", 4),
        identity(f"dynamic_batching {{ max_queue_delay_microseconds: {2**64 - 1} }}", 4),
        identity(f"sequence_batching {{ oldest {{ max_candidate_sequences: {BIG} }} }}", 4),
        identity(f"sequence_batching {{ max_sequence_idle_microseconds: {2**64 - 1} }}", 4),
        identity("dynamic_batching { }", BIG),
        identity(f'input {{ name: "huge" data_type: TYPE_FP32 dims: [{2**62}, {2**62}] optional: true }}'),
        identity(f"version_policy {{ latest {{ num_versions: {2**32 - 1} }} }}"),
        identity(f'parameters {{ key: "long" value {{ string_value: "{"x" * 1_000_000}" }} }}'),
    ],
)
def test_large_values_that_allocate_nothing_are_accepted(tmp_path: Path, text: str) -> None:
    read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 1_000_000,
        "input {" * 50_000,
        "input [" * 50_000,
        "[" + "a." * 50_000 + "] {}",
        'name: "' + "x" * 1_000_000,
        "max_batch_size: " + "9" * 1_000_000,
        "max_batch_size: 0x" + "f" * 1_000_000,
        "input { data_type: " + "T" * 1_000_000 + " }",
        'name: "' + "x" * 1_000_000 + '"',
        "\n" * 1_000_000 + "}",
    ],
    ids=lambda text: text.strip()[:12],
)
def test_a_long_text_that_is_wrong_is_refused_with_a_short_message(tmp_path: Path, text: str) -> None:
    began = process_time()
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, text)
    assert len(raised.value.message) < 2_000
    assert process_time() - began < 30  # quadratic time would be hours


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000_000,
        '{"a":' * 300_000,
        '{"max_batch_size":' + "9" * 1_000_000 + "}",
        '{"max_batch_size":1e400}',
        '{"max_batch_size":-Infinity}',
        '{"max_batch_size":NaN}',
        '{"' + "x" * 1_000_000 + '":1}',
        '{"name":"\\ud800"}',
        json.dumps({"input": [{"data_type": "x" * 1_000_000}]}),
        " " * (MAX_CONFIG_BYTES + 1),
    ],
    ids=lambda text: text[:20],
)
def test_the_same_holds_for_overrides(tmp_path: Path, text: str) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    with pytest.raises(ConfigError) as raised:
        Repository([tmp_path]).read("m", Override(config=text))
    assert len(raised.value.message) < 2_000
