"""Reading of trace files, the phases of spans, reasons, and pages."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rich.console import Console

from conch.base.errors import InvalidRequest
from conch.base.report.waterfall import duration
from conch.operate.traces.read import read_traces
from conch.operate.traces.spans import link, reason
from conch.operate.traces.waterfall import html_page, print_list, print_waterfall

MS = 1_000_000
COMPUTE = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


def entries(number: int, model: str, parent: int = 0, request_id: str = "", **times: float) -> list[dict[str, Any]]:
    """The entries of a span; times are milliseconds."""
    head: dict[str, Any] = {"id": number, "model_name": model, "model_version": 1}
    head |= {"request_id": request_id} if request_id else {}
    head |= {"parent_id": parent} if parent else {}
    stamps = [{"id": number, "timestamps": [{"name": name, "ns": int(at * MS)}]} for name, at in times.items()]
    return [*stamps[:1], head, *stamps[1:]]


def executed(start: float, queue: float, took: float) -> dict[str, float]:
    """The times of a request that waited and was executed."""
    begun, end = start + queue, start + queue + took
    times = dict(zip(COMPUTE, (begun, begun, end, end), strict=True))
    return {"REQUEST_START": start, "QUEUE_START": start, **times, "REQUEST_END": end}


def pipeline() -> list[dict[str, Any]]:
    """An ensemble of 100 ms with two steps; the second calls a third model."""
    whole = {"HTTP_RECV_START": 0, "HTTP_RECV_END": 1, "REQUEST_START": 1, "QUEUE_START": 2, "REQUEST_END": 98}
    return [
        *entries(1, "pipeline", request_id="42", **whole, HTTP_SEND_START=98, HTTP_SEND_END=100),
        *entries(2, "preprocess", 1, "42", **executed(2, 60, 8)),
        *entries(3, "detect", 1, "42", **executed(71, 1, 25)),
        *entries(4, "called", 3, "call", **executed(73, 0, 20)),
    ]


def write(folder: Path, value: object, name: str = "trace.json") -> str:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_phases_of_a_pipeline(tmp_path: Path) -> None:
    [root] = read_traces([write(tmp_path, pipeline())]).requests
    assert [(depth, span.model, span.ns // MS) for depth, span in root.walk()] == [
        (0, "pipeline", 100), (1, "preprocess", 68), (1, "detect", 26), (2, "called", 20),
    ]  # fmt: skip
    assert [(segment.phase, segment.ns // MS) for segment in root.segments()] == [
        ("receive", 1), ("other", 1), ("steps", 96), ("send", 2),
    ]  # fmt: skip
    [preprocess, detect] = root.children
    assert [(segment.phase, segment.ns // MS) for segment in preprocess.segments()] == [("queue", 60), ("infer", 8)]
    assert dict(detect.own_ns())["infer"] == 5 * MS  # without the call
    assert reason(root) == (
        '100 ms: 60% the queue of "preprocess" (60 ms), 20% the execution of "called" (20 ms);'
        " more instances, larger batches or a queue policy help"
    )


@pytest.mark.parametrize(
    ("times", "text"),
    [
        (executed(0, 1, 99), '99% the execution of "m" (99 ms); a faster model'),
        ({"HTTP_RECV_START": 0, "HTTP_RECV_END": 90, **executed(90, 1, 1)}, "98% receiving the request"),
        ({**executed(0, 1, 1), "GRPC_SEND_START": 2, "GRPC_SEND_END": 50}, "96% sending the response"),
        ({"QUEUE_START": 1, "REQUEST_END": 21}, '100% the queue of "m" (20 ms)'),  # timed out, or from the cache
        ({"REQUEST_START": 5}, "too few timestamps"),
        # Triton waits for a gRPC request before it is sent.
        ({"GRPC_WAITREAD_START": 0, "GRPC_WAITREAD_END": 900, **executed(900, 9, 1)}, '10 ms: 90% the queue of "m"'),
    ],
)  # fmt: skip
def test_reasons(tmp_path: Path, times: dict[str, float], text: str) -> None:
    [root] = read_traces([write(tmp_path, entries(1, "m", **times))]).requests
    assert text in reason(root)


def test_responses_of_a_decoupled_model_are_sent_while_it_runs(tmp_path: Path) -> None:
    value = entries(1, "m", **executed(0, 0, 10))
    for at in (2, 12, 14):
        value += entries(1, "m", HTTP_SEND_START=at, HTTP_SEND_END=at + 1)
    [root] = read_traces([write(tmp_path, value)]).requests
    assert [(segment.phase, segment.ns // MS) for segment in root.segments()] == [
        ("infer", 10), ("other", 2), ("send", 1), ("other", 1), ("send", 1),
    ]  # fmt: skip


def test_the_slowest_is_first_and_ids_select(tmp_path: Path) -> None:
    value = [*entries(1, "fast", request_id="a", **executed(0, 0, 1)), *entries(2, "slow", **executed(0, 0, 9))]
    other = write(tmp_path, entries(1, "middle", **executed(0, 0, 5)), "trace.json.0")
    traces = read_traces([write(tmp_path, value), other])
    assert [root.model for root in traces.requests] == ["slow", "middle", "fast"]
    assert traces.find("a").model == "fast"
    assert traces.find("2").model == "slow"
    with pytest.raises(InvalidRequest, match="no request has the id 'x'; ids are, for example, 2, 1"):
        traces.find("x")


def test_a_step_finds_its_request(tmp_path: Path) -> None:
    assert read_traces([write(tmp_path, pipeline())]).find("4").model == "pipeline"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "line 1 is not valid JSON; expected a trace file or OTLP in JSON"),
        ("\x00\xff binary", "line 1 is not valid JSON"),
        ("[", "line 1 is not valid JSON"),
        ("[]", "has no trace; expected Triton's trace file"),
        ('{"foo": 1}', "has no trace; expected Triton's trace file"),
        ("12", "has no trace"),
        ('[{"id":1,"model_name":"m","model_version":1}]', "no timestamps; trace with --trace-config=level=TIMESTAMPS"),
        ('{"resourceSpans": []}', "no spans of models; it must have spans of Conch or Triton"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}, 1]}, 2]}]}', "no spans of models"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_files_without_a_trace(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_traces([write(tmp_path, text)])
    assert problem in str(raised.value)
    assert str(raised.value).startswith(str(tmp_path / "trace.json"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="gone: No such file or directory"):
        read_traces([str(tmp_path / "gone")])
    with pytest.raises(InvalidRequest, match="Is a directory"):
        read_traces([str(tmp_path)])
    with pytest.raises(InvalidRequest, match=r"http://127\.0\.0\.1:1/x: .*refused"):
        read_traces(["http://127.0.0.1:1/x"])


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def test_a_file_that_is_cut_anywhere_shows_what_is_complete(tmp_path: Path) -> None:
    text = ",\n".join(["[" + json.dumps(pipeline()[0]), *map(json.dumps, pipeline()[1:])]) + "]"
    for size in range(100, len(text) - 1, 7):
        traces = read_traces([write(tmp_path, text[:size])])
        [warning] = traces.warnings[:1]
        last = text[:size].split("\n")[-1].strip(" ,[")
        complete = not last or is_json(last)
        line = text.count("\n", 0, size) + 1
        expected = "has no end: it is still written" if complete else "is cut or damaged in line"
        assert expected in warning
        assert complete or f"line {line}; " in warning
    assert read_traces([write(tmp_path, text)]).warnings == []


def test_damaged_values_do_not_stop_the_view(tmp_path: Path) -> None:
    value = pipeline()
    value += [
        {"id": 1, "timestamps": "x"},
        {"id": 1, "timestamps": [1, {"name": "X", "ns": "1"}, {"ns": 5 * MS}]},
        {"id": [], "timestamps": [{"name": "REQUEST_START", "ns": -5}]},
        *entries(7, "loop", 8, **executed(0, 0, 1)),
        *entries(8, "loop", 7, **executed(0, 0, 1)),
        *entries(9, "orphan", 1000, **executed(0, 0, 1)),
        *entries(10, "backwards", **executed(5, -3, -1)),
    ]  # fmt: skip
    traces = read_traces([write(tmp_path, value)])
    assert "parent that is not in the file" in traces.warnings[0]
    console = Console(width=100, file=None, record=True)
    with console.capture():
        for root in traces.requests:
            print_waterfall(root, console)
            html_page(root)


def test_a_long_chain_of_parents_ends(tmp_path: Path) -> None:
    value = [entry for number in range(1, 3000) for entry in entries(number, "m", number - 1, **executed(0, 0, 1))]
    traces = read_traces([write(tmp_path, value)])
    assert max(depth for root in traces.requests for depth, _ in root.walk()) < 100
    assert link([]) == []


def rendered(path: str, width: int = 100, encoding: str = "utf-8") -> str:
    import io

    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    console = Console(file=buffer, width=width, highlight=False)
    traces = read_traces([path])
    print_list(traces, console)
    print_waterfall(traces.requests[0], console)
    data = buffer.buffer
    assert isinstance(data, io.BytesIO)
    return data.getvalue().decode(encoding)


def test_the_waterfall_in_a_terminal(tmp_path: Path) -> None:
    text = rendered(write(tmp_path, pipeline()))
    assert text.splitlines() == [
        "id  request id  model       time  reason                                                            ",
        '1   42          pipeline  100 ms  60% the queue of "preprocess" (60 ms), 20% the execution of       ',
        '                                  "called" (20 ms)                                                  ',
        "request 42",
        "pipeline:1          0 ns    100 ms  ▸────────────────────────────────────────────────────────────◂",
        "  preprocess:1      2 ms     68 ms   ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░██████",
        "  detect:1         71 ms     26 ms                                              ░████████████████",
        "    called:1       73 ms     20 ms                                               █████████████",
        "               ▸ receive  ░ queue  █ infer  ◂ send  ─ steps",
        reason(read_traces([str(tmp_path / "trace.json")]).requests[0]),
    ]


def test_terminals_of_any_width_and_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, pipeline())
    assert "#" in rendered(path, encoding="ascii")
    for width in (1, 20, 60, 500):
        assert "preprocess"[: max(width // 3, 5)] in rendered(path, width) or width < 20


def test_names_cannot_control_the_terminal_or_the_page(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>\x1b[31m[bold]\n'
    path = write(tmp_path, entries(1, evil, request_id=evil, **executed(0, 1, 1)))
    assert "\x1b" not in rendered(path)
    page = html_page(read_traces([path]).requests[0])
    assert "<script" not in page


class Checker(HTMLParser):
    """Collects tags and attributes, and checks that tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_without_other_files(tmp_path: Path) -> None:
    page = html_page(read_traces([write(tmp_path, pipeline())]).requests[0])
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    tags = {tag for tag, _ in checker.elements}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    names = {name for _, attributes in checker.elements for name in attributes}
    assert not names & {"src", "href", "onclick", "onload"}
    assert "prefers-color-scheme: dark" in page
    assert "url(" not in page
    svg = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    bars = [element for element in svg if element.tag == "rect"]
    phases = [(bar.findtext("title") or "").partition(": ")[2].partition(" ")[0] for bar in bars]
    assert phases[:4] == ["receive", "other", "steps", "send"]
    ends = [float(bar.get("x", "0%")[:-1]) + float(bar.get("width", "0%")[:-1]) for bar in bars]
    assert all(0 <= float(bar.get("x", "0%")[:-1]) <= 100 for bar in bars)
    assert all(end <= 100.1 for end in ends)
    assert "the queue of &#34;preprocess&#34;" in page


def otlp(trace_id: str = "0af7651916cd43dd8448eb211c80319c") -> dict[str, Any]:
    """What a collector writes for a request."""

    def span(number: str, parent: str, name: str, events: dict[str, int], **more: Any) -> dict[str, Any]:
        stamps = [{"name": event, "timeUnixNano": str(at * MS)} for event, at in events.items()]
        ids = {"traceId": trace_id, "spanId": number * 16, "parentSpanId": parent * 16}
        return {**ids, "name": name, "events": stamps, **more}

    def named(model: str) -> list[dict[str, Any]]:
        return [
            {"key": "triton.model_name", "value": {"stringValue": model}},
            {"key": "triton.model_version", "value": {"intValue": "3"}},
            {"key": "triton.request_id", "value": {"stringValue": "r"}},
        ]

    failed = {"code": 2, "message": "not today"}
    received = {"HTTP_RECV_START": 0, "HTTP_RECV_END": 10, "HTTP_SEND_START": 90, "HTTP_SEND_END": 100}
    spans = [
        span("a", "f", "InferRequest", received),
        span("b", "a", "outer", {"REQUEST_START": 10, "QUEUE_START": 10, "REQUEST_END": 90}, attributes=named("outer")),
        span("c", "b", "inner", {"QUEUE_START": 20, "REQUEST_END": 80}, attributes=named("inner"), status=failed),
        span("d", "c", "compute", {name: 20 + 20 * number for number, name in enumerate(COMPUTE)}),
        span("e", "d", "tokenize", {}),
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}


@pytest.mark.parametrize("form", ["otlp", "tempo", "jaeger", "lines"])
def test_spans_of_a_collector(tmp_path: Path, form: str) -> None:
    document, other = otlp(), otlp("1" * 32)
    for number, span in enumerate(other["resourceSpans"][0]["scopeSpans"][0]["spans"]):
        span["spanId"] = span["parentSpanId"] = str(number) * 16
    text = {
        "otlp": json.dumps(document),
        "tempo": json.dumps({"batches": otlp("CvdlGRbNQ92ESOshHIAxnA==")["resourceSpans"]}),
        "jaeger": json.dumps({"result": document}),
        "lines": json.dumps(document) + "\n" + json.dumps(other),
    }[form]
    traces = read_traces([write(tmp_path, text)])
    assert traces.warnings == []
    root = traces.find("0af7651916cd43dd8448eb211c80319c")
    assert [(depth, span.model, span.version, span.error) for depth, span in root.walk()] == [
        (0, "outer", "3", ""), (1, "inner", "3", "not today"),
    ]  # fmt: skip
    assert [(segment.phase, segment.ns // MS) for segment in root.segments()] == [
        ("receive", 10),
        ("steps", 80),
        ("send", 10),
    ]
    assert [segment.phase for segment in root.children[0].segments()] == ["input", "infer", "output"]


def test_durations() -> None:
    assert [duration(ns) for ns in (0, 999, 1500, 12_345_678, 2 * 10**9)] == [
        "0 ns",
        "999 ns",
        "1.5 µs",
        "12.3 ms",
        "2 s",
    ]


def conch_trace(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "conch", "trace", "view", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path, pipeline())
    page = tmp_path / "out.html"
    shown = conch_trace(path, "--id", "42", "--html", str(page), "--json")
    assert shown.returncode == 0, shown.stderr
    [request] = json.loads(shown.stdout)["requests"]
    assert (request["request_id"], request["duration_ns"], len(request["spans"])) == ("42", 100 * MS, 4)
    assert request["spans"][1]["phases"][0] == {"phase": "queue", "start_ns": 2 * MS, "duration_ns": 60 * MS}
    assert page.read_text().startswith("<!DOCTYPE html>")
    missing = conch_trace(str(tmp_path / "gone"))
    assert (missing.returncode, "gone: No such file or directory" in missing.stderr) == (1, True)
    unwritable = conch_trace(path, "--html", str(tmp_path / "no" / "x.html"))
    assert (unwritable.returncode, "cannot write" in unwritable.stderr) == (1, True)
    cut = conch_trace(write(tmp_path, json.dumps(pipeline())[:-30], "cut.json"))
    assert (cut.returncode, "is cut or damaged in line 1" in cut.stderr) == (0, True)


def test_a_trace_behind_a_url() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(pipeline()).encode()
            self.send_response(200 if self.path == "/trace" else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=lambda: server.serve_forever(0.05), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    assert read_traces([f"{url}/trace"]).requests[0].model == "pipeline"
    with pytest.raises(InvalidRequest, match="HTTP status 404; give the URL of a trace"):
        read_traces([f"{url}/other"])
    server.shutdown()
    server.server_close()
