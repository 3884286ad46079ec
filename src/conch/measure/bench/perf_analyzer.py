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


def _same(name: str, meaning: str, *aliases: str) -> PerfAnalyzerFlag:
    return PerfAnalyzerFlag((name, *aliases), Treatment.SAME, meaning=meaning)


def _means(
    names: str, words: Callable[[str], list[str]], meaning: str, note: str = "", *, bare: bool = False
) -> PerfAnalyzerFlag:
    return PerfAnalyzerFlag(tuple(names.split()), Treatment.MEANS, words, note, bare, meaning)


def _ignored(names: str, note: str, *, bare: bool = False) -> PerfAnalyzerFlag:
    return PerfAnalyzerFlag(tuple(names.split()), Treatment.IGNORED, note=note, bare=bare)


def _refused(names: str, note: str, *, bare: bool = False) -> PerfAnalyzerFlag:
    return PerfAnalyzerFlag(tuple(names.split()), Treatment.REFUSED, note=note, bare=bare)


_TRIALS = "one window after an automatic warm-up, with a confidence interval, replaces repeated windows; see --until"

# fmt: off
FLAGS = (
    _same("-m", "model"),
    _means("-x --model-version", _flag("--model-version"), "`--model-version`"),
    _means("-u --url", lambda value: [value], "the URL"),
    _means("-i", _protocol, "`--protocol`"),
    _same("-b", "batch dimension", "--batch-size"),
    _means("-p --measurement-interval", _milliseconds("--duration"), "`--duration`, in milliseconds"),
    _means("-f", _flag("--csv"), "`--csv`"),
    _ignored("-v --verbose", "the live view shows more", bare=True),
    _ignored("-s --stability-percentage", _TRIALS),
    _ignored("-r --max-trials", _TRIALS),
    _means("--concurrency-range", _concurrency, "`--concurrency START:END:STEP`"),
    _means("--request-rate-range", _flag("--rate"), "`--rate START:END:STEP`"),
    _means("--request-distribution", _flag("--arrivals"), "`--arrivals`"),
    _means("--request-intervals", lambda value: [f"--trace=intervals:{value}"], "`--trace`",
           "the intervals are used once in their order; perf_analyzer starts again at the end of the file"),
    _same("--percentile", "the percentile is reported; stability is judged by it only with `--until`"),
    _same("--input-data", "file, `random` or `zero`"),
    _same("--shape", "shape of a variable input"),
    _means("-z", lambda _: ["--input-data=zero"], "`--input-data zero`", bare=True),
    _means("--string-length", _flag("--string-length"), "length of generated strings"),
    _same("--shared-memory", "tensors in shared memory"),
    _same("--output-shared-memory-size", "size of regions of outputs"),
    _means("--streaming", lambda _: ["--protocol=grpc-stream"], "`--protocol grpc-stream`", bare=True),
    _same("--sequence-length", "requests per sequence"),
    _ignored("--sequence-length-variation", "use --sequence-length 20±4"),
    _ignored("--num-of-sequences", "each user follows one sequence: --concurrency is their number"),
    _ignored("--sequence-id-range --start-sequence-id", "ids are unique in each run"),
    _means("--measurement-mode", _measurement_mode, "windows by time or by count"),
    _means("--measurement-request-count --request-count", _flag("--requests"), "`--requests`"),
    _means("--latency-threshold -l", lambda value: [f"--slo=latency:{value}ms"], "`--slo latency:…ms`",
           "all requests are judged, by default 99 % of them must be within it; perf_analyzer judges the mean"),
    _means("--binary-search", lambda _: ["--find-max"], "`--find-max`", "the search starts from below", bare=True),
    _ignored("--max-threads --num-threads", "the generator uses processes, as many as needed; see --processes"),
    _ignored("--async -a --sync", "requests are always asynchronous", bare=True),
    _ignored("--warmup-request-count", "the warm-up lasts until the server is steady; see --warm-up"),
    _ignored("--collect-metrics", "metrics are always collected where found", bare=True),
    _same("--metrics-url", "metrics of the server"),
    _ignored("--metrics-interval", "metrics are read once a second"),
    _same("-H", "header"),
    _means("--service-kind", _service_kind, "triton or openai"),
    _means("--endpoint", _flag("--endpoint"), "path of the OpenAI API"),
    _ignored("--ssl-grpc-use-ssl", "write grpcs:// or https:// before host and port", bare=True),
    _means("--ssl-grpc-root-certifications-file --ssl-https-ca-certificates-file", _flag("--ca-file"), "`--ca-file`"),
    _means("--ssl-grpc-private-key-file --ssl-https-private-key-file", _flag("--key-file"), "`--key-file`"),
    _means("--ssl-grpc-certificate-chain-file --ssl-https-client-certificate-file", _flag("--cert-file"),
           "`--cert-file`"),
    _means("--ssl-https-verify-peer --ssl-https-verify-host",
           lambda value: ["--insecure"] if value == "0" else [], "0 is `--insecure`"),
    _ignored("--ssl-https-client-certificate-type --ssl-https-private-key-type", "files are PEM"),
    _means("--profile-export-file", _flag("--records"), "`--records`",
           "a line of JSON for each request, not perf_analyzer's document"),
    _ignored("--verbose-csv", "--csv has all columns", bare=True),
    _refused("--grpc-compression-algorithm", "requests are not compressed"),
    _refused("--serial-sequences", "sequences run beside each other", bare=True),
    _refused("--periodic-concurrency-range", "use --ramp or --concurrency"),
    _refused("--model-repository --model-signature-name", "the server is remote"),
    _refused("--enable-mpi", "start one conch bench on each machine", bare=True),
    _refused("--trace-level --trace-rate --trace-count --log-frequency",
             "change the server's trace settings over its API; see docs/tracing.md"),
)
# fmt: on

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
    """Return the table of docs/benchmarking.md as Markdown: a row for flags of the same treatment and meaning."""
    groups: dict[str, list[str]] = {}
    for flag in FLAGS:
        if flag.treatment is Treatment.SAME:
            meaning = "the same flag"
        elif flag.treatment is Treatment.MEANS:
            meaning = "; ".join(text for text in (flag.meaning, flag.note) if text)
        else:
            meaning = f"{flag.treatment.value}: {flag.note}"
        groups.setdefault(meaning, []).extend(f"`{name}`" for name in flag.names)
    rows = [f"| {' '.join(names)} | {meaning} |" for meaning, names in groups.items()]
    return "\n".join(["| Flag | Meaning here |", "| --- | --- |", *rows])
