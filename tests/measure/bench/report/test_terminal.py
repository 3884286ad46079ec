"""Tables in terminals of any width, and in pipes."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from conch.measure.bench.measurement import Note
from conch.measure.bench.report.terminal import print_certificate
from tests.measure.bench.report.samples import (
    ab_certificate,
    certificate,
    hostile_certificate,
    measurement,
    s0_certificate,
)


def printed(document, columns: int, *, terminal: bool = False) -> str:
    out = io.StringIO()
    print_certificate(document, Console(file=out, width=columns, force_terminal=terminal, highlight=False))
    return out.getvalue()


def test_the_table_of_levels_has_the_published_columns_and_values() -> None:
    lines = printed(s0_certificate(), 200).splitlines()
    titles = next(line for line in lines if "Concurrency" in line)
    assert " ".join(titles.split()) == (
        "Concurrency Requests Wall Tok/s Output tok/s Req/s P50 P95 P99 Max Errors GPU Efficiency"
    )
    rows = [line.split() for line in lines if line.split()[:1] in (["1"], ["5"], ["30"])]
    assert " ".join(rows[2]) == "30 30 1.30 s 2,900 2,720 23.1 1.28 s 1.29 s 1.29 s 1.29 s 0 79.0 % 78.5 %"
    assert [row[1] for row in rows] == ["1", "5", "30"]  # 36 requests, of which the source claims 65


def test_percentiles_of_few_requests_are_named_as_what_they_are() -> None:
    text = " ".join(printed(s0_certificate(), 100).split())
    assert "P95 is the maximum at 1, 5: fewer than 20 requests. P99 is the maximum at all levels" in text


def test_different_prompts_and_the_share_of_cached_tokens_are_named() -> None:
    document = certificate(4, tokens=True, requests=100)
    (measured,) = document.measurements
    assert measured.tokens is not None
    sent = measured.outcomes["ok"]
    for distinct, said in ((sent, f"No prompt was sent twice, in {sent} requests."), (16, "16 different prompts were")):
        tokens = replace(measured.tokens, distinct_prompts=distinct, cached_tokens=measured.tokens.input_tokens // 4)
        shown = replace(document, measurements=(replace(measured, tokens=tokens),))
        text = " ".join(printed(shown, 200).split())
        assert said in text
        assert "25.0 % of their tokens came from the server's prefix cache." in text


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("make", [s0_certificate, ab_certificate, lambda: certificate(1, 5, 30, tokens=True)])
def test_no_line_is_too_long_and_no_value_is_cut(make, columns: int) -> None:
    text = printed(make(), columns)
    assert max(cell_len(line) for line in text.splitlines()) <= columns
    assert "…" not in text
    for value in ("P99", "Efficiency", "Requests"):
        assert value in text


def test_a_pipe_gets_plain_text() -> None:
    assert "\x1b" not in printed(ab_certificate(), 80)
    assert "\x1b" in printed(ab_certificate(), 80, terminal=True)


def test_names_with_control_characters_and_markup_are_printed_literally() -> None:
    text = printed(hostile_certificate(), 200)
    assert "\x1b" not in text
    assert "</script><img" in text


def test_a_run_without_a_level_is_printed() -> None:
    assert "Nothing was measured." in printed(certificate(), 40)


def test_the_result_of_a_search_stands_before_the_notes() -> None:
    result = Note("slo-max", "info", "highest load that meets the SLO: concurrency 2 (99 % of requests within 20 ms)")
    text = printed(replace(certificate(1, 2), notes=(result, Note("steal", "warning", "CPU time was stolen"))), 120)
    assert "info: highest load" not in text
    assert 0 < text.index("Highest load that meets the SLO: concurrency 2") < text.index("CPU time was stolen")


def test_cancelled_requests_are_counted() -> None:
    measured = replace(measurement(1, requests=50), outcomes={"ok": 45, "cancelled": 5})
    assert "Cancelled" in printed(replace(certificate(1), measurements=(measured,)), 200)
    assert "Cancelled" not in printed(certificate(1), 200)
