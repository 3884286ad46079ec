"""The flags of perf_analyzer, as data: what each means here, and what differs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from conch.base.errors import InvalidRequest


class Treatment(Enum):
    """Whether and how a flag is supported."""

    SAME = "same flag"
    MEANS = "accepted"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PerfAnalyzerFlag:
    """One flag. `words` makes the flags of `conch bench` from its value, which is "" for a bare flag.

    `note` is printed when the flag is used: what differs, why it is ignored, or what to use instead.
    """

    names: tuple[str, ...]
    treatment: Treatment
    words: Callable[[str], list[str]] = lambda _: []
    note: str = ""
    bare: bool = False
    meaning: str = ""  # for the table of the docs


def _flag(name: str) -> Callable[[str], list[str]]:
    """Return words of one flag with the same value."""
    return lambda value: [f"{name}={value}"]


def _milliseconds(name: str) -> Callable[[str], list[str]]:
    return lambda value: [f"{name}={value}ms"]


def _on(name: str) -> Callable[[str], list[str]]:
    """Return words of a flag without a value."""
    return lambda _: [name]


def _protocol(value: str) -> list[str]:
    return [f"--protocol={value.lower()}"]


def _service_kind(value: str) -> list[str]:
    if value == "triton":
        return []
    if value == "openai":
        return ["--protocol=openai"]
    raise InvalidRequest(f"--service-kind {value} is not supported: expected triton or openai")


def _concurrency(value: str) -> list[str]:
    parts = value.split(":")
    if len(parts) > 1 and parts[1] == "0":
        raise InvalidRequest(f"--concurrency-range {value}: for an open end, use --find-max --slo latency:TIME")
    return [f"--concurrency={value}"]


def _measurement_mode(value: str) -> list[str]:
    if value not in ("time_windows", "count_windows"):
        raise InvalidRequest(f"--measurement-mode must be time_windows or count_windows, got {value}")
    return []


def _latency_threshold(value: str) -> list[str]:
    return [f"--slo=latency:{value}ms"]


_SAME, _MEANS, _IGNORED, _REFUSED = Treatment.SAME, Treatment.MEANS, Treatment.IGNORED, Treatment.REFUSED
_TRIALS = "one window after an automatic warm-up, with a confidence interval, replaces repeated windows; see --until"
_NO_THREADS = "the generator uses processes, as many as needed; see --processes"
_ONE_CLIENT = "requests are always asynchronous"

FLAGS = (
    PerfAnalyzerFlag(("-m",), _SAME, meaning="model"),
    PerfAnalyzerFlag(("-x", "--model-version"), _MEANS, _flag("--model-version"), meaning="`--model-version`"),
    PerfAnalyzerFlag(("-u", "--url"), _MEANS, lambda value: [value], meaning="the URL"),
    PerfAnalyzerFlag(("-i",), _MEANS, _protocol, meaning="`--protocol`"),
    PerfAnalyzerFlag(("-b", "--batch-size"), _SAME, meaning="batch dimension"),
    PerfAnalyzerFlag(
        ("-p", "--measurement-interval"), _MEANS, _milliseconds("--duration"), meaning="`--duration`, in milliseconds"
    ),
    PerfAnalyzerFlag(("-f",), _MEANS, _flag("--csv"), meaning="`--csv`"),
    PerfAnalyzerFlag(("-v", "--verbose"), _IGNORED, note="the live view shows more", bare=True),
    PerfAnalyzerFlag(("-s", "--stability-percentage"), _IGNORED, note=_TRIALS),
    PerfAnalyzerFlag(("-r", "--max-trials"), _IGNORED, note=_TRIALS),
    PerfAnalyzerFlag(("--concurrency-range",), _MEANS, _concurrency, meaning="`--concurrency START:END:STEP`"),
    PerfAnalyzerFlag(("--request-rate-range",), _MEANS, _flag("--rate"), meaning="`--rate START:END:STEP`"),
    PerfAnalyzerFlag(("--request-distribution",), _MEANS, _flag("--arrivals"), meaning="`--arrivals`"),
    PerfAnalyzerFlag(
        ("--request-intervals",),
        _MEANS,
        lambda value: [f"--trace=intervals:{value}"],
        "the intervals are used once in their order; perf_analyzer starts again at the end of the file",
        meaning="`--trace`",
    ),
    PerfAnalyzerFlag(
        ("--percentile",),
        _SAME,
        meaning="the percentile is reported; stability is judged by it only with `--until`",
    ),
    PerfAnalyzerFlag(("--input-data",), _SAME, meaning="file, `random` or `zero`"),
    PerfAnalyzerFlag(("--shape",), _SAME, meaning="shape of a variable input"),
    PerfAnalyzerFlag(("-z",), _MEANS, lambda _: ["--input-data=zero"], bare=True, meaning="`--input-data zero`"),
    PerfAnalyzerFlag(("--string-length",), _MEANS, _flag("--string-length"), meaning="length of generated strings"),
    PerfAnalyzerFlag(("--shared-memory",), _SAME, meaning="tensors in shared memory"),
    PerfAnalyzerFlag(("--output-shared-memory-size",), _SAME, meaning="size of regions of outputs"),
    PerfAnalyzerFlag(
        ("--streaming",), _MEANS, lambda _: ["--protocol=grpc-stream"], bare=True, meaning="`--protocol grpc-stream`"
    ),
    PerfAnalyzerFlag(("--sequence-length",), _SAME, meaning="requests per sequence"),
    PerfAnalyzerFlag(("--sequence-length-variation",), _IGNORED, note="use --sequence-length 20±4"),
    PerfAnalyzerFlag(
        ("--num-of-sequences",), _IGNORED, note="each user follows one sequence: --concurrency is their number"
    ),
    PerfAnalyzerFlag(("--sequence-id-range", "--start-sequence-id"), _IGNORED, note="ids are unique in each run"),
    PerfAnalyzerFlag(("--measurement-mode",), _MEANS, _measurement_mode, meaning="windows by time or by count"),
    PerfAnalyzerFlag(
        ("--measurement-request-count", "--request-count"), _MEANS, _flag("--requests"), meaning="`--requests`"
    ),
    PerfAnalyzerFlag(
        ("--latency-threshold", "-l"),
        _MEANS,
        _latency_threshold,
        "all requests are judged, by default 99 % of them must be within it; perf_analyzer judges the mean",
        meaning="`--slo latency:…ms`",
    ),
    PerfAnalyzerFlag(
        ("--binary-search",), _MEANS, _on("--find-max"), "the search starts from below", True, "`--find-max`"
    ),
    PerfAnalyzerFlag(("--max-threads", "--num-threads"), _IGNORED, note=_NO_THREADS),
    PerfAnalyzerFlag(("--async", "-a", "--sync"), _IGNORED, note=_ONE_CLIENT, bare=True),
    PerfAnalyzerFlag(
        ("--warmup-request-count",), _IGNORED, note="the warm-up lasts until the server is steady; see --warm-up"
    ),
    PerfAnalyzerFlag(("--collect-metrics",), _IGNORED, note="metrics are always collected where found", bare=True),
    PerfAnalyzerFlag(("--metrics-url",), _SAME, meaning="metrics of the server"),
    PerfAnalyzerFlag(("--metrics-interval",), _IGNORED, note="metrics are read once a second"),
    PerfAnalyzerFlag(("-H",), _SAME, meaning="header"),
    PerfAnalyzerFlag(("--service-kind",), _MEANS, _service_kind, meaning="triton or openai"),
    PerfAnalyzerFlag(("--endpoint",), _MEANS, _flag("--endpoint"), meaning="path of the OpenAI API"),
    PerfAnalyzerFlag(
        ("--ssl-grpc-use-ssl",), _IGNORED, note="write grpcs:// or https:// before host and port", bare=True
    ),
    PerfAnalyzerFlag(
        ("--ssl-grpc-root-certifications-file", "--ssl-https-ca-certificates-file"),
        _MEANS,
        _flag("--ca-file"),
        meaning="`--ca-file`",
    ),
    PerfAnalyzerFlag(
        ("--ssl-grpc-private-key-file", "--ssl-https-private-key-file"),
        _MEANS,
        _flag("--key-file"),
        meaning="`--key-file`",
    ),
    PerfAnalyzerFlag(
        ("--ssl-grpc-certificate-chain-file", "--ssl-https-client-certificate-file"),
        _MEANS,
        _flag("--cert-file"),
        meaning="`--cert-file`",
    ),
    PerfAnalyzerFlag(
        ("--ssl-https-verify-peer", "--ssl-https-verify-host"),
        _MEANS,
        lambda value: ["--insecure"] if value == "0" else [],
        meaning="0 is `--insecure`",
    ),
    PerfAnalyzerFlag(
        ("--ssl-https-client-certificate-type", "--ssl-https-private-key-type"), _IGNORED, note="files are PEM"
    ),
    PerfAnalyzerFlag(
        ("--profile-export-file",),
        _MEANS,
        _flag("--records"),
        "a line of JSON for each request, not perf_analyzer's document",
        meaning="`--records`",
    ),
    PerfAnalyzerFlag(("--verbose-csv",), _IGNORED, note="--csv has all columns", bare=True),
    PerfAnalyzerFlag(("--grpc-compression-algorithm",), _REFUSED, note="requests are not compressed"),
    PerfAnalyzerFlag(("--serial-sequences",), _REFUSED, note="sequences run beside each other", bare=True),
    PerfAnalyzerFlag(("--periodic-concurrency-range",), _REFUSED, note="use --ramp or --concurrency"),
    PerfAnalyzerFlag(("--model-repository", "--model-signature-name"), _REFUSED, note="the server is remote"),
    PerfAnalyzerFlag(("--enable-mpi",), _REFUSED, note="start one conch bench on each machine", bare=True),
    PerfAnalyzerFlag(
        ("--trace-level", "--trace-rate", "--trace-count", "--log-frequency"),
        _REFUSED,
        note="change the server's trace settings over its API; see docs/tracing.md",
    ),
)

_BY_NAME = {name: flag for flag in FLAGS for name in flag.names}
_DEFAULT_DURATION_MS = 5000


def translate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments in words of `conch bench`, and notices. Raises InvalidRequest for refused flags.

    A command line with flags that only perf_analyzer has gets its defaults: concurrency 1, constant rates, windows of
    5 s.
    """
    translated: list[str] = []
    notices: list[str] = []
    foreign = False
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        flag = _BY_NAME.get(name)
        if word == "--":
            return [*translated, word, *rest], notices
        if flag is None or flag.treatment is Treatment.SAME or name == "--model-version":
            translated.append(word)
            continue
        foreign = True
        if not equals and not flag.bare:
            if not rest:
                raise InvalidRequest(f"{name} of perf_analyzer needs a value")
            value = rest.pop(0)
        if flag.treatment is Treatment.REFUSED:
            raise InvalidRequest(f"{name} of perf_analyzer is not supported: {flag.note}")
        if flag.treatment is Treatment.IGNORED:
            notices.append(f"{name} is ignored: {flag.note}")
        elif flag.note:
            notices.append(f"{name}: {flag.note}")
        translated += flag.words(value)
    return (_with_defaults(translated) if foreign else translated), notices


def _with_defaults(words: list[str]) -> list[str]:
    given = {word.partition("=")[0] for word in words}
    if not given & {"--concurrency", "--rate", "--trace", "--find-max", "--ramp", "--burst"}:
        words = [*words, "--concurrency=1"]
    if "--rate" in given and "--arrivals" not in given:
        words = [*words, "--arrivals=constant"]
    if not given & {"--duration", "--requests", "--until"}:
        words = [*words, f"--duration={_DEFAULT_DURATION_MS}ms"]
    return words


def help_text() -> str:
    """Return the table for a terminal."""
    lines = ["Flags of perf_analyzer that conch bench accepts:", ""]
    for flag in FLAGS:
        text = flag.note if flag.treatment in (Treatment.IGNORED, Treatment.REFUSED) else flag.meaning.replace("`", "")
        lines.append(f"  {', '.join(flag.names)}\n      {flag.treatment.value}: {text}")
    return "\n".join(lines)


def table() -> str:
    """Return the table of docs/benchmarking.md as Markdown."""
    rows = [
        f"| {' '.join(f'`{name}`' for name in flag.names)} | {flag.treatment.value} | "
        f"{'; '.join(each for each in (flag.meaning, flag.note) if each)} |"
        for flag in FLAGS
    ]
    return "\n".join(["| Flag | Treatment | Meaning here |", "| --- | --- | --- |", *rows])
