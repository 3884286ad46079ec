"""The flags of perf_analyzer, the table `perf_analyzer.csv`: what each means here, and what differs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from conch.base.errors import InvalidRequest
from conch.base.files.tables import table_rows


class Treatment(Enum):
    """Whether and how a flag is supported."""

    SAME = "same flag"
    MEANS = "accepted"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class PerfAnalyzerFlag:
    """One flag. `template` makes a flag of `conch bench` from its value, unless a function reads that.

    `note` is printed when the flag is used: what differs, why it is ignored, or what to use instead.
    """

    names: tuple[str, ...]
    treatment: Treatment
    template: str
    note: str
    bare: bool
    meaning: str  # for the table of the docs

    def words(self, value: str) -> list[str]:
        """Return the words of `conch bench` for a value, "" of a bare flag. Raises InvalidRequest."""
        if reader := _READERS.get(self.names[0]):
            return reader(value)
        return [self.template.format(value)] if self.template else []


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


def _insecure(value: str) -> list[str]:
    return ["--insecure"] if value == "0" else []


# Flags whose value must be read: name → words of `conch bench` from its value.
_READERS: dict[str, Callable[[str], list[str]]] = {
    "-i": _protocol,
    "--service-kind": _service_kind,
    "--concurrency-range": _concurrency,
    "--measurement-mode": _measurement_mode,
    "--ssl-https-verify-peer": _insecure,
}


def _read() -> Iterator[PerfAnalyzerFlag]:
    for row in table_rows(__file__, "perf_analyzer.csv"):
        yield PerfAnalyzerFlag(
            tuple(row["names"].split()),
            Treatment[row["treatment"].upper()],
            row["template"],
            row["note"],
            row["takes"] == "nothing",
            row["meaning"],
        )


FLAGS = tuple(_read())
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
