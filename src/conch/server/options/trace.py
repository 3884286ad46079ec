"""The settings in `--trace-config`, and Triton's deprecated flags for some of them.

--trace-config=<key>=<value>              level (repeatable), rate, count, mode
--trace-config=triton,<key>=<value>       file, log-frequency
--trace-config=opentelemetry,<key>=<value>   url, resource=<name>=<value>, bsp_…
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conch.base.command_line.flag_values import ValueKind
from conch.base.command_line.flags import Flag

TRITON = "triton"
OPENTELEMETRY = "opentelemetry"
# In Triton's order; without a level tracing is off.
LEVELS = ("TIMESTAMPS", "TENSORS")
# The names in older releases of Triton.
_OLD_LEVELS = {"MIN": "TIMESTAMPS", "MAX": "TIMESTAMPS"}
MAX_RATE = 2**32 - 1
MAX_COUNT = 2**31 - 1
_GROUP = "Tracing"
_BSP = ("bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """One setting; `mode` is "" for those of all modes."""

    mode: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """All settings together. Times of `bsp_…` are in milliseconds; None means OTEL_BSP_… or its default."""

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    mode: str = TRITON
    file: str = ""
    log_frequency: int = 0
    url: str = "http://localhost:4318/v1/traces"
    resource: tuple[str, ...] = ()  # `<name>=<value>`
    bsp_max_queue_size: int | None = None
    bsp_schedule_delay: int | None = None
    bsp_max_export_batch_size: int | None = None

    @classmethod
    def of(cls, settings: Iterable[TraceSetting]) -> "TraceOptions":
        """Combine settings: the last of a key applies, levels and resources accumulate."""
        options = cls()
        for setting in settings:
            options = _with(options, setting)
        return options


def level_of(name: str) -> str:
    """Return the level with a name in any case, or "OFF". Raises ValueError for an unknown name."""
    name = name.upper()
    name = _OLD_LEVELS.get(name, name)
    if name not in (*LEVELS, "OFF"):
        raise ValueError(name)
    return name


def ordered_levels(names: Iterable[str]) -> tuple[str, ...]:
    """Return levels in Triton's order, each once, without OFF."""
    given = set(names)
    return tuple(level for level in LEVELS if level in given)


def check_trace_settings(settings: Iterable[TraceSetting]) -> Iterable[str]:
    """Yield one sentence for each contradiction between settings and each missing folder."""
    options = TraceOptions.of(settings)
    if options.mode == TRITON and options.levels and not options.file:
        yield "--trace-config: tracing needs a file, --trace-config=triton,file=<path>"
    if options.file and not Path(options.file).absolute().parent.is_dir():
        yield f"--trace-config: directory '{Path(options.file).absolute().parent}' of the trace file does not exist"
    if options.mode == OPENTELEMETRY and "TENSORS" in options.levels:
        yield "--trace-config: level=TENSORS needs mode=triton; spans of OpenTelemetry hold no tensors"


def _with(options: TraceOptions, setting: TraceSetting) -> TraceOptions:
    key = setting.key.replace("-", "_")
    value: object = setting.value
    if key == "level":
        key, value = "levels", ordered_levels((*options.levels, setting.value))
    elif key == "resource":
        value = (*options.resource, setting.value)
    elif key not in ("mode", "file", "url"):
        value = int(setting.value)
    changed: dict[str, Any] = {key: value}
    return replace(options, **changed)


# ---- parsing ---------------------------------------------------------------------------------------------------------


def _integer(minimum: int, maximum: int) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not minimum <= int(text) <= maximum:
            raise ValueError(text)
        return str(int(text))

    return read


def _mode(text: str) -> str:
    if text not in (TRITON, OPENTELEMETRY):
        raise ValueError(text)
    return text


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text


def _pair(text: str) -> str:
    name, _, value = text.partition("=")
    if not name or not value:
        raise ValueError(text)
    return text


_READERS: dict[tuple[str, str], Callable[[str], str]] = {
    ("", "level"): level_of,
    ("", "rate"): _integer(0, MAX_RATE),
    ("", "count"): _integer(-1, MAX_COUNT),
    ("", "mode"): _mode,
    (TRITON, "file"): _not_empty,
    (TRITON, "log-frequency"): _integer(0, MAX_RATE),
    (OPENTELEMETRY, "url"): _not_empty,
    (OPENTELEMETRY, "resource"): _pair,
    **{(OPENTELEMETRY, key): _integer(1, MAX_RATE) for key in _BSP},
}


def _read(text: str) -> TraceSetting:
    mode, comma, rest = text.partition(",")
    if not comma or "=" in mode:  # a value may hold commas
        mode, rest = "", text
    key, _, value = rest.partition("=")
    reader = _READERS.get((mode, key))
    if reader is None:
        raise ValueError(text)
    return TraceSetting(mode, key, reader(value))


TRACE_SETTING = ValueKind(
    "[<mode>,]<key>=<value>",
    "level=OFF|TIMESTAMPS|TENSORS, rate=<n>, count=<n>, mode=triton|opentelemetry, triton,file=<path>, "
    "triton,log-frequency=<n>, opentelemetry,url=<url>, opentelemetry,resource=<name>=<value> or "
    + ", ".join(f"opentelemetry,{key}=<n>" for key in _BSP),
    _read,
)


def _deprecated(name: str, mode: str, key: str, metavar: str, allowed: str, default: object, repeatable: bool) -> Flag:
    prefix = f"{mode}," if mode else ""
    reader = _READERS[mode, key]
    return Flag(
        name,
        _GROUP,
        f"Deprecated form of --trace-config={prefix}{key}=<{metavar}>.",
        ValueKind(metavar, allowed, lambda text: TraceSetting(mode, key, reader(text))),
        default,
        repeatable,
        replaced_by="trace-config",
    )


DEPRECATED_FLAGS: tuple[Flag, ...] = (
    _deprecated("trace-file", TRITON, "file", "path", "a path", "", False),
    _deprecated("trace-level", "", "level", "level", "one of OFF, TIMESTAMPS, TENSORS, MIN, MAX", "OFF", True),
    _deprecated("trace-rate", "", "rate", "n", "a whole number, 0 or more", 1000, False),
    _deprecated("trace-count", "", "count", "n", "a whole number, -1 or more", -1, False),
    _deprecated("trace-log-frequency", TRITON, "log-frequency", "n", "a whole number, 0 or more", 0, False),
)
