"""The flags of `conch bench`. Nothing here imports numpy: `--help` is quick."""

import os
import re
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.numbers import count
from conch.base.command_line.values import (
    amount,
    concurrencies,
    duration,
    fraction,
    natural,
    percentile,
    rate_list,
    ratio,
    slo,
    warm_up,
)
from conch.base.command_line.wait_for_model import add_wait_flag
from conch.measure.bench.measuring_window import Precision

_DEFAULT_COLUMNS = 80
_PRECISION = re.compile(r"\s*p(\d+(?:\.\d+)?)\s*(?:±|\+-|\+/-)\s*(\d+(?:\.\d+)?)\s*%\s*")
_EXAMPLES = """\
examples:
  conch bench localhost:8000                        the only model of a server, at concurrency 1, 5 and 30
  conch bench densenet_onnx --concurrency 1:32:x2   a model of localhost:8000; 1, 2, 4, 8, 16, 32
  conch bench localhost:8001 -m digits --protocol grpc --rate 100,200 --duration 30s
  conch bench localhost:8000 -m chat --protocol openai --output-tokens 64 --slo ttft:200ms,itl:30ms
  conch bench localhost:8000 -m digits --find-max --slo latency:20ms
  conch bench localhost:8000 -m digits --against localhost:9000 --html ab.html
  conch bench compare before.json after.json --fail-if 'p99 > +5 %'

The main flags of perf_analyzer work too, with its meanings: conch bench --help-perf-analyzer lists them.

exit status: 0 measured; 1 no successful request, or the server was lost; 2 usage; 3 measured, but not to be compared
with other runs: a note of the report says why; 130 (Ctrl-C) or 143 (SIGTERM) ended early, with a report of the levels
that were finished.
"""


def parser() -> CommandParser:
    """Return the parser of the command's own flags."""
    parsed = CommandParser(
        "conch bench",
        usage="conch bench [URL] [MODEL] [flags]",
        description="Measure an inference server over KServe v2 (HTTP, gRPC) or the OpenAI API.",
        epilog=_EXAMPLES,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parsed.add_argument("target", nargs="*", metavar="URL|MODEL", help="server and model (default: localhost:8000)")
    parsed.add_argument("--help-perf-analyzer", action=_PerfAnalyzerHelp, nargs=0, help=SUPPRESS)
    for add in (_add_target, _add_load, _add_window, _add_inputs, _add_access, _add_observed, _add_output, _add_client):
        add(parsed)
    return parsed


class _HelpFormatter(RawDescriptionHelpFormatter):
    """As wide as the terminal. argparse makes one for each flag, and imports shutil with three compressors for it."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"width": _columns() - 2, **more})


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS") or os.get_terminal_size(1).columns)
    except (ValueError, OSError):
        return _DEFAULT_COLUMNS


class _PerfAnalyzerHelp(Action):
    """Print the table of perf_analyzer's flags."""

    def __call__(
        self,
        parser: ArgumentParser,
        namespace: Namespace,  # noqa: ARG002
        values: str | Sequence[Any] | None,  # noqa: ARG002
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        from conch.measure.bench.commands.perf_analyzer import help_text

        print(help_text())
        parser.exit()


def _add_target(parser: CommandParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument("-m", "--model", metavar="NAME", help="model (default: the only one that is ready)")
    group.add_argument("--model-version", default="", metavar="N", help="version (default: the server's choice)")
    group.add_argument(
        "--protocol",
        choices=("http", "grpc", "grpc-stream", "openai", "generate"),
        help="protocol (default: of the port, or what suits the model)",
    )
    group.add_argument(
        "--against", metavar="URL", help="a second server: measure both in turn (A/B); it is A, the baseline"
    )
    group.add_argument("--rounds", type=count, metavar="N", help="pairs of windows of an A/B run (default: 6)")


def _add_load(parser: CommandParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--concurrency", type=concurrencies, metavar="LIST", help="users: 1,5,30 or 1:32:x2 or 1:10:1 (default: 1,5,30)"
    )
    group.add_argument("--rate", type=rate_list, metavar="LIST", help="open loop, requests per second: 100,200")
    group.add_argument(
        "--steps", type=count, metavar="N", help="N levels of --concurrency or --rate FROM:TO, at equal ratios"
    )
    group.add_argument(
        "--arrivals", metavar="FORM", help="constant, poisson or gamma:CV, for --rate (default: poisson)"
    )
    group.add_argument("--ramp", metavar="FROM:TO:TIME", help="open loop whose rate grows: 10:200:30s")
    group.add_argument("--burst", metavar="BASE:BURST:ON/PERIOD", help="open loop with square bursts: 50:500:2s/10s")
    group.add_argument("--trace", metavar="FILE", help="replay: times, Mooncake, BurstGPT, or Conch's request log")
    group.add_argument(
        "--trace-speed", type=float, default=1.0, metavar="X", help="replay X times as fast (default: 1)"
    )
    group.add_argument("--think-time", type=duration, default=0.0, metavar="TIME", help="pause of a user (0s)")
    group.add_argument(
        "--slo", type=slo, default={}, metavar="LIST", help="targets for goodput: ttft:200ms,itl:30ms,latency:1s"
    )
    group.add_argument(
        "--slo-share", type=fraction, default=0.99, metavar="SHARE", help="share that must meet --slo (default: 99%%)"
    )
    group.add_argument("--find-max", action="store_true", help="find the highest concurrency or rate that meets --slo")


def _add_window(parser: CommandParser) -> None:
    group = parser.add_argument_group("how long", "of each level; a time is 500us, 30s, 3m")
    group.add_argument("--duration", type=duration, metavar="TIME", help="window (default: 10s, or that of --ramp)")
    group.add_argument("--requests", type=count, metavar="N", help="window of N requests")
    group.add_argument("--until", type=precision, metavar="RULE", help="window until an interval is narrow: 'p99 ±5%%'")
    group.add_argument(
        "--max-duration",
        type=duration,
        default=120.0,
        metavar="TIME",
        help="bound of --requests and --until (default: 2m)",
    )
    group.add_argument(
        "--warm-up", type=warm_up, metavar="auto|TIME", help="before the window (default: auto, until it is steady)"
    )
    group.add_argument("--repeat", type=count, default=1, metavar="N", help="measure all levels N times (default: 1)")
    group.add_argument("--timeout", type=duration, default=60.0, metavar="TIME", help="of a request (60s)")
    add_wait_flag(group)
    group.add_argument(
        "--grace", type=duration, default=5.0, metavar="TIME", help="wait for answers at the end (default: 5s)"
    )


def _add_inputs(parser: CommandParser) -> None:
    group = parser.add_argument_group("requests", "by default they are random values of the model's metadata")
    add: Callable[..., Action] = group.add_argument
    add(
        "--input-data",
        metavar="random|zero|FILE|DIR",
        help="JSON or folder of perf_analyzer, prompts (.txt, .jsonl), or a trace file with tensors (default: random)",
    )
    add("--images", metavar="DIR", help="send the images of a folder")
    add(
        "--normalization", metavar="unit|signed|imagenet|none", default="unit", help="of decoded images (default: unit)"
    )
    add(
        "--distinct",
        type=count,
        metavar="N",
        help="different requests, sent in turn (default: 16; generated prompts never repeat)",
    )
    add("--json-tensors", action="store_true", help="tensors in JSON over HTTP rather than as binary data")
    add(
        "--shape", action="append", default=[], metavar="NAME:1,3,224,224", help="shape of a variable input; repeatable"
    )
    add("--range", action="append", default=[], metavar="NAME:LOW,HIGH", help="range of random values; repeatable")
    add("-b", "--batch-size", type=count, default=1, metavar="N", help="batch dimension of requests (default: 1)")
    add("--string-length", type=count, default=128, metavar="N", help="length of generated strings (default: 128)")
    add("--endpoint", metavar="PATH", help="v1/chat/completions, v1/completions or v1/embeddings")
    add("--prompt-tokens", type=amount, metavar="N|N±S", help="tokens of generated prompts")
    add("--output-tokens", type=amount, metavar="N|N±S", help="max_tokens of generations")
    add("--turns", type=amount, metavar="N|N±S", help="turns of a conversation (default: 1)")
    add("--prefix-tokens", type=natural, default=0, metavar="N", help="tokens of a prefix that all prompts share")
    add("--prefixes", type=count, default=1, metavar="N", help="number of different prefixes (default: 1)")
    add("--tokenizer", metavar="FILE", help="tokenizer.json for exact token counts")
    add("--no-streaming", action="store_true", help="ask language models for whole answers")
    add("--sequence-length", type=amount, metavar="N|N±S", help="requests per sequence of stateful models")
    add(
        "--cancel", metavar="SHARE[@TIME|@N]", help="cancel a share of requests, after a time or N responses: 10%%@50ms"
    )
    add("--expect", metavar="FILE|first", help="compare answers with those of a file, or with the first ones")
    add("--tolerance", type=ratio, default=1e-3, metavar="RATIO", help="of floats in expected answers (default: 0.001)")
    add("--shared-memory", choices=("none", "system", "cuda"), default="none", help="send tensors in shared memory")
    add("--output-shared-memory-size", type=count, metavar="BYTES", help="region of each output (default: fits)")


def _add_access(parser: CommandParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument("--api-key-file", metavar="FILE", help="file with the API key, sent as a bearer token")
    group.add_argument("-H", "--header", action="append", default=[], metavar="NAME: VALUE", help="header; repeatable")
    group.add_argument("--ca-file", metavar="FILE", help="certificates to verify the server with")
    group.add_argument("--cert-file", metavar="FILE", help="client certificate")
    group.add_argument("--key-file", metavar="FILE", help="key of the client certificate")
    group.add_argument("--insecure", action="store_true", help="do not verify the server's certificate")


def _add_observed(parser: CommandParser) -> None:
    group = parser.add_argument_group("observed beside the load")
    group.add_argument(
        "--metrics-url", metavar="URL", help="metrics of the server (default: port 8002 or /metrics; none: do not look)"
    )
    group.add_argument("--gpu-metrics-url", metavar="URL", help="metrics of conch gpu-exporter or dcgm-exporter")


def _add_output(parser: CommandParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", metavar="FILE", help="write the certificate as JSON")
    group.add_argument("--html", metavar="FILE", help="write it as a page with plots")
    group.add_argument("--csv", metavar="FILE", help="write a table in the form of perf_analyzer's -f")
    group.add_argument("--long-csv", metavar="FILE", help="write one line for each value, with its interval")
    group.add_argument("--records", metavar="FILE", help="write a line of JSON for each request")
    group.add_argument("--markdown", metavar="FILE", help="write a summary for pull requests")
    group.add_argument(
        "--percentile",
        type=percentile,
        action="append",
        default=[],
        metavar="P",
        help="also this percentile; repeatable",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing but the result")
    group.add_argument("--plain", action="store_true", help="print lines instead of the live view")


def _add_client(parser: CommandParser) -> None:
    group = parser.add_argument_group("client")
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="of inputs and arrivals (default: 0)")
    group.add_argument("--processes", type=count, metavar="N", help="of the generator (default: as needed)")
    group.add_argument("--connections", type=count, metavar="N", help="to the server (default: one per user)")


def precision(text: str) -> Precision:
    """Parse 'p99 ±5%'."""
    found = _PRECISION.fullmatch(text)
    if found and 0 < float(found[1]) < 100 and 0 < float(found[2]) < 100:
        return Precision(float(found[1]), float(found[2]) / 100)
    raise ArgumentTypeError(f"'{text}' is not a rule: expected a percentile and a width, such as 'p99 ±5%'")
