"""Settings of --trace-config, and the deprecated flags for them."""

from pathlib import Path

import pytest

from conch.server.options.parser import OptionError, parse
from conch.server.options.server_options import ServerOptions
from conch.server.options.trace import TraceOptions


def options(tmp_path: Path, *arguments: str) -> ServerOptions:
    return parse([f"--model-repository={tmp_path}", *arguments], {})


def traced(tmp_path: Path, *arguments: str) -> TraceOptions:
    return TraceOptions.of(options(tmp_path, *arguments).trace_config)


def test_settings_add_up(tmp_path: Path) -> None:
    path = tmp_path / "a,b.json"
    given = ("level=TENSORS", "level=timestamps", "rate=5", "count=9", f"triton,file={path}", "triton,log-frequency=3")
    assert traced(tmp_path, *(f"--trace-config={pair}" for pair in given)) == TraceOptions(
        levels=("TIMESTAMPS", "TENSORS"), rate=5, count=9, file=str(path), log_frequency=3
    )
    spans = ("mode=opentelemetry", "opentelemetry,url=http://c:4318/v1/traces", "opentelemetry,resource=a=b=c")
    spans += ("opentelemetry,resource=d=e", "opentelemetry,bsp_schedule_delay=7")
    assert traced(tmp_path, *(f"--trace-config={span}" for span in spans)) == TraceOptions(
        mode="opentelemetry", url="http://c:4318/v1/traces", resource=("a=b=c", "d=e"), bsp_schedule_delay=7
    )


def test_the_environment_separates_settings_by_semicolons(tmp_path: Path) -> None:
    environment = {"CONCH_TRACE_CONFIG": f"level=TIMESTAMPS;triton,file={tmp_path}/t"}
    parsed = parse([f"--model-repository={tmp_path}"], environment)
    assert TraceOptions.of(parsed.trace_config) == TraceOptions(levels=("TIMESTAMPS",), file=f"{tmp_path}/t")


def test_deprecated_flags_have_a_lower_precedence(tmp_path: Path) -> None:
    deprecated = ("--trace-rate=7", "--trace-level=MIN", f"--trace-file={tmp_path}/t", "--trace-count=3")
    parsed = options(tmp_path, *deprecated, "--trace-log-frequency=2", "--trace-config=rate=5")
    assert TraceOptions.of(parsed.trace_config) == TraceOptions(
        levels=("TIMESTAMPS",), rate=5, count=3, file=f"{tmp_path}/t", log_frequency=2
    )
    assert "--trace-rate is deprecated; use --trace-config" in parsed.notices


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("level=DEEP", "expected level=OFF|TIMESTAMPS|TENSORS"),
        ("level=DEEP", "got 'level=DEEP'"),
        ("rate=-1", "expected level=OFF"),
        ("triton,url=x", "expected level=OFF"),
        ("opentelemetry,file=x", "expected level=OFF"),
        ("opentelemetry,resource=x", "expected level=OFF"),
        ("mode=zipkin", "expected level=OFF"),
        ("level=TIMESTAMPS", "tracing needs a file, --trace-config=triton,file=<path>"),
        ("triton,file=/no/such/place/t.json", "directory '/no/such/place' of the trace file does not exist"),
    ],
)
def test_invalid_settings_are_reported(tmp_path: Path, setting: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        options(tmp_path, f"--trace-config={setting}")
    assert text in str(caught.value)


def test_spans_hold_no_tensors(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="level=TENSORS needs mode=triton"):
        options(tmp_path, "--trace-config=mode=opentelemetry", "--trace-config=level=TENSORS")
