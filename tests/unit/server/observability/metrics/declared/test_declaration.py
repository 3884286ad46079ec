"""Files of declared metrics: every mistake is refused at the start with its place and a remedy."""

from pathlib import Path
from textwrap import dedent

import pytest

from conch.base.errors import ConchError
from conch.domain.declared_metrics.declaration import read_declarations

VALID = """\
metrics:
  - name: shop_in_flight
    kind: gauge
    help: Requests in flight.
    in_flight: true
    labels: {model: model, tier: 'parameter("tier", "none")'}
  - name: shop_tokens_total
    kind: counter
    help: Tokens.
    where: success
    expression: prompt_tokens + completion_tokens
  - name: shop_seconds
    kind: histogram
    help: Seconds of
      large batches.
    buckets: [0.1, 1]
    expression: duration
    max_series: 10
"""


def write(folder: Path, text: str, name: str = "metrics.yaml") -> Path:
    (folder / name).write_text(dedent(text))
    return folder / name


def test_a_file_is_read(tmp_path: Path) -> None:
    gauge, counter, histogram = read_declarations(write(tmp_path, VALID))
    assert (gauge.name, gauge.kind, gauge.in_flight, list(gauge.labels)) == (
        *("shop_in_flight", "gauge", True),
        ["model", "tier"],
    )
    assert counter.where is not None
    assert histogram.help == "Seconds of large batches."
    assert histogram.buckets == (0.1, 1.0, float("inf"))
    assert histogram.max_series == 10


def declaration(**changes: object) -> str:
    """Return a file with one counter whose lines are changed; None removes one."""
    lines = {"name": "a_total", "kind": "counter", "help": "Text.", **changes}
    text = "\n    ".join(f"{key}: {value}" for key, value in lines.items() if value is not None)
    return f"metrics:\n  - {text}\n"


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (declaration(name="nv_inference_count"), ":2: metrics[0].name", "is a metric of the server"),
        (declaration(name="conch_tunnel_up"), ":2: metrics[0].name", "is a metric of the server"),
        (declaration(name="conch_request_duration_seconds_count"), ":2:", "is a metric of the server"),
        (declaration() + declaration()[len("metrics:\n") :], ":5: metrics[1].name", "is declared above"),
        (declaration(name="9a"), ":2: metrics[0].name", "not a valid name"),
        (declaration(name=None), ":2: metrics[0].name", "not a valid name"),
        (declaration(kind="count"), ":3: metrics[0].kind", "counter, gauge, histogram"),
        (declaration(help="''"), ":4: metrics[0].help", "help text"),
        (declaration(expression="latency"), ":5: metrics[0].expression", 'unknown name "latency"'),
        (declaration(expression="[1]"), ":5: metrics[0].expression", "not an expression"),
        (declaration(where="duration"), ":5: metrics[0].where", "a boolean is needed"),
        (declaration(labels="{model: mode1}"), ":5: metrics[0].labels.model", 'did you mean "model"'),
        (declaration(labels="{__name__: model}"), "metrics[0].labels.__name__", "not a valid label"),
        (declaration(labels="[model]"), ":5: metrics[0].labels", "a mapping"),
        (declaration(kind="histogram", expression="1", labels="{le: model}"), "labels.le", "buckets"),
        (declaration(kind="histogram", expression="1", buckets="[2, 1]"), ":6: metrics[0].buckets", "ascending"),
        (declaration(kind="histogram", expression="1", buckets="[.inf]"), "buckets", "without infinity"),
        (declaration(kind="histogram"), "expression", "needs an expression"),
        (declaration(buckets="[1]"), "buckets", "only histograms"),
        (declaration(in_flight="true"), "in_flight", "gauges only"),
        (declaration(kind="gauge", in_flight="true", expression="duration"), "expression", "when it began"),
        (declaration(max_series="0"), "max_series", "1 to 100000"),
        (declaration(expressionn="1"), ":5: metrics[0].expressionn", 'did you mean "expression"'),
        ("metrics: 1\n", "metrics.yaml", "a list named metrics"),
        ("metrics: []\nmore: 1\n", ":2: more", "unknown key"),
        ("metrics:\n  - [\n", ":3:", "invalid YAML"),
        ("", "metrics.yaml", "a list named metrics is missing"),
    ],
)
def test_a_mistake_is_refused(tmp_path: Path, text: str, place: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConchError) as refused:
        read_declarations(path)
    assert str(path) in refused.value.message
    assert place in refused.value.message
    assert message in refused.value.message


def test_python_may_compute_what_expressions_cannot(tmp_path: Path) -> None:
    text = """
    import math

    metrics = [
        {
            "name": "shop_log_bytes",
            "kind": "gauge",
            "help": "Logarithm of the size.",
            "labels": {"size": lambda request: "large" if request.input_bytes > 100 else "small"},
            "expression": lambda request: math.log10(request.input_bytes),
        }
    ]
    """
    [family] = read_declarations(write(tmp_path, text, "metrics.py"))
    assert family.name == "shop_log_bytes"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.py", "1 / 0", "ZeroDivisionError"),
        ("metrics.py", "metrics = 7", "a list named metrics"),
        ("metrics.py", "metrics = [{'name': 'up_total', 'kind': 'counter'}]", "metrics[0].help"),
        ("metrics.so", "", "Shared libraries are not supported"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConchError, match=r"custom_metrics|metrics\.py") as refused:
        read_declarations(write(tmp_path, text, name))
    assert message in refused.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConchError, match="cannot read the file"):
        read_declarations(tmp_path / "missing.yaml")


def test_the_example_is_valid() -> None:
    example = Path(__file__).parents[6] / "examples" / "metrics" / "custom_metrics.yaml"
    assert len(read_declarations(example)) == 4
