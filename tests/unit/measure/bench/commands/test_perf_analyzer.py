from pathlib import Path

import pytest

from conch.base.command_line.flags import declared_flags
from conch.base.errors import InvalidRequest
from conch.measure.bench.command import read_plan
from conch.measure.bench.perf_analyzer import FLAGS, Treatment, help_text, table, translate
from conch.measure.bench.plan import BenchPlan


def test_a_command_line_of_perf_analyzer_means_the_same() -> None:
    line = (
        "-m densenet_onnx -x 2 -u host:8001 -i gRPC -b 4 -p 3000 -f out.csv --concurrency-range 1:8:2 "
        "--percentile=95 --shape input:3,224,224 -H a:b --streaming --ssl-grpc-root-certifications-file ca.pem"
    )
    words, notices = translate(line.split())
    plan = read_plan(words)
    assert plan.model == "densenet_onnx"
    assert plan.model_version == "2"
    assert plan.words == ("host:8001",)
    assert plan.inputs.batch_size == 4
    assert plan.duration_s == 3.0
    assert plan.csv == "out.csv"
    assert plan.concurrency == (1, 3, 5, 7)
    assert plan.percentile == (95.0,)
    assert plan.inputs.shapes == {"input": (3, 224, 224)}
    assert plan.header == ("a:b",)
    assert plan.protocol == "grpc-stream"
    assert plan.ca_file == "ca.pem"
    assert notices == []


def test_its_defaults_hold_where_its_flags_are_used() -> None:
    plan = read_plan(translate(["-m", "m", "-i", "http"])[0])
    assert plan.concurrency == (1,)
    assert plan.duration_s == 5.0


def test_other_command_lines_keep_their_defaults() -> None:
    words = ["localhost:8000", "-m", "m", "--input-data", "zero", "-b", "2"]
    assert translate(words) == (words, [])


def test_rates_and_intervals() -> None:
    words, _ = translate(["-m", "m", "--request-rate-range=100:300:100", "--request-distribution", "poisson"])
    plan = read_plan(words)
    assert plan.rate == "100:300:100"
    assert plan.arrivals == "poisson"


def test_a_latency_threshold_with_binary_search_finds_the_maximum() -> None:
    words, notices = translate(["-m", "m", "--concurrency-range", "1:64", "--binary-search", "-l", "20"])
    plan = read_plan(words)
    assert plan.find_max
    assert plan.slo == {"latency": 0.02}
    assert plan.concurrency is not None
    assert plan.concurrency[-1] == 64
    assert len(notices) == 2


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.treatment is Treatment.REFUSED])
def test_what_is_refused_is_named(flag: object) -> None:
    assert hasattr(flag, "names")
    with pytest.raises(InvalidRequest, match="not supported"):
        translate([flag.names[0], "1"])


def test_what_is_ignored_gets_a_notice() -> None:
    _, notices = translate(["-m", "m", "-s", "10", "-v", "--max-threads=4"])
    assert [notice.partition(" ")[0] for notice in notices] == ["-s", "-v", "--max-threads"]


def test_no_flag_is_in_the_table_twice() -> None:
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))


def test_flags_that_are_the_same_exist() -> None:
    flags = declared_flags(BenchPlan)
    own = {f"--{flag.name}" for flag in flags} | {f"-{alias}" for flag in flags for alias in flag.aliases}
    for flag in FLAGS:
        if flag.treatment is Treatment.SAME:
            assert set(flag.names) <= own


def test_every_flag_says_what_it_means() -> None:
    assert all(flag.meaning or flag.note for flag in FLAGS)
    assert "--binary-search" in help_text()
    assert "| `--binary-search` | `--find-max`; " in table()


def test_the_table_of_the_docs_is_the_table_of_the_command() -> None:
    page = Path(__file__).parents[5] / "docs" / "benchmarking.md"
    assert table() in page.read_text(encoding="utf-8")
