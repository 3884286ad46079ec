import logging
from pathlib import Path

import numpy as np
import pytest

from conch.base.logs import JsonFormatter, LineFormatter
from conch.domain import load_traces
from conch.domain.load_traces import LoadTrace, TraceError, read_trace

MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 2366]}
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
"""


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str, form: str = "", model: str | None = None) -> LoadTrace:
        path = tmp_path / "load.txt"
        path.write_text(text)
        return read_trace(f"{form}:{path}" if form else str(path), model)

    return read


def test_mooncake(read) -> None:
    trace = read(MOONCAKE)
    assert trace.times_s.tolist() == pytest.approx([0, 3.053])
    assert trace.input_tokens.tolist() == [6955, 6472]
    assert trace.output_tokens.tolist() == [52, 26]
    assert trace.hash_ids == ((46, 47), (46, 2366))
    assert trace.sessions is None


def test_mooncake_with_sessions(read) -> None:
    lines = [
        f'{{"timestamp": {at}, "input_length": 1, "output_length": 2{more}}}'
        for at, more in ((0, ', "session_id": "b"'), (5, ', "session_id": "a"'), (9, ""), (12, ', "session_id": "b"'))
    ]
    trace = read("\n".join(lines))
    assert trace.sessions.tolist() == [0, 1, 2, 0]
    assert trace.hash_ids is None


def test_burstgpt(read) -> None:
    trace = read(BURSTGPT)
    assert trace.times_s.tolist() == [0, 40, 113]
    assert trace.input_tokens.tolist() == [472, 1087, 417]
    assert trace.output_tokens.tolist() == [18, 230, 0]


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1763800000\n1763800001.5\n", ""),
        ("1763800000000\n1763800001500\n", ""),
        ("1763800000000000\n1763800001500000\n", ""),
        ("1763800000000000000\n1763800001500000000\n", ""),
        ("# seconds\n0.0\n1.5 # the last\n\n", ""),
        ("3.5\n2.0\n", "timestamps"),
        ("100\n1600\n", "ms"),
        ("0\n1500000\n", "us"),
        ("0\n1500000000\n", "ns"),
        ("200\n1500000\n", "intervals"),
    ],
)
def test_times(read, text: str, form: str) -> None:
    assert read(text, form).times_s.tolist() == pytest.approx([0, 1.5], abs=1e-9)


def test_nanoseconds_are_exact(read) -> None:
    assert read("1763800000000000001\n1763800000000000002\n").times_s.tolist() == [0, pytest.approx(1e-9, rel=1e-6)]


def log_record(created: float, fields: dict[str, object], message: str = "request") -> logging.LogRecord:
    record = logging.LogRecord("x", logging.INFO, "request_log.py", 32, message, None, None)
    record.created, record.fields = created, fields
    return record


@pytest.mark.parametrize("formatter", [JsonFormatter(), LineFormatter()])
def test_the_request_log_is_read_as_it_is_written(read, formatter: logging.Formatter) -> None:
    records = [
        log_record(1763800000.0, {}, "Started HTTP service at 0.0.0.0:8000"),
        log_record(
            1763800010.0,
            {
                "request_id": 'a "b" total_us=1',
                "model": "llm",
                "total_us": 2_000_000,
                "prompt_tokens": 12,
                "completion_tokens": 34,
            },
        ),
        log_record(1763800009.0, {"model": "cnn", "total_us": 500_000, "stages": [{"model": "x", "total_us": 7}]}),
        log_record(1763800009.5, {"model": "llm", "total_us": 2_000_000}),
    ]
    text = "\n".join(formatter.format(record) for record in records) + "\nI11"
    trace = read(text)
    assert trace.times_s.tolist() == pytest.approx([0, 0.5, 1.0])
    assert trace.input_tokens.tolist() == [-1, 12, -1]
    assert trace.output_tokens.tolist() == [-1, 34, -1]
    assert read(text, model="cnn").times_s.tolist() == [0]
    with pytest.raises(TraceError, match="with requests for the model 'none'"):
        read(text, model="none")


def test_the_request_log_with_whole_seconds(read) -> None:
    lines = [LineFormatter(iso8601=True).format(log_record(1763800000.0 + at, {"total_us": 0})) for at in (0, 2)]
    assert read("\n".join(lines)).times_s.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("", "", "no request found"),
        ("0\n1\n2\n", "", "ambiguous; name it, as in ms:load.txt"),
        ("1.5\nx\n", "", "line 2 is not a number: 'x'"),
        ("1.5\ninf\n", "", "not finite"),
        ("5\n-1\n", "intervals", "interval 2 is negative: -1"),
        (MOONCAKE + "{", "", "line 3 is not valid JSON"),
        (MOONCAKE + "[1]", "", "line 3 is not a JSON object"),
        (MOONCAKE + "{}", "", "line 3 has no 'timestamp'; expected lines such as"),
        (MOONCAKE.replace("6472", '"x"'), "", "line 2 has an invalid 'input_length': x"),
        (MOONCAKE.replace("6472", "-1"), "", "line 2: 'input_length' must be a number of tokens, got -1"),
        (MOONCAKE.replace("[46, 2366]", "[0.5]"), "", "line 2: hash_ids must be a list of integers"),
        (BURSTGPT + "x,ChatGPT,1,2,3,log\n", "", "line 5 has an invalid 'Timestamp': x"),
        ("Timestamp,Model\n1,GPT-4\n", "", "line 2 has no 'Request tokens'"),
        ('I1121 12:21:10.580974 29331 server.py:32] "Started"', "", "no request found"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(read, text: str, form: str, message: str) -> None:
    with pytest.raises(TraceError) as error:
        read(text, form)
    assert message in str(error.value)
    assert str(error.value).startswith("load.txt: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(str(tmp_path / "none"))
    with pytest.raises(TraceError, match="Is a directory"):
        read_trace(f"ms:{tmp_path}")


def test_the_number_of_requests_is_bounded(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_traces, "MAX_REQUESTS", 2)
    with pytest.raises(TraceError, match="more than 2 requests"):
        read(BURSTGPT)


def test_cut_out_and_speed(read) -> None:
    trace = read(BURSTGPT).window(30, 200)
    assert trace.times_s.tolist() == [10, 83]
    assert trace.input_tokens.tolist() == [1087, 417]
    assert trace.faster(2).times_s.tolist() == [5, 41.5]
    assert read(MOONCAKE).window(0, 1).hash_ids == ((46, 47),)
    with pytest.raises(ValueError, match=r"no request from 200 s to 300 s; it is 113 s long"):
        read(BURSTGPT).window(200, 300)
    with pytest.raises(ValueError, match="cannot be replayed"):
        trace.faster(0)
    assert np.all(np.diff(trace.times_s) >= 0)
