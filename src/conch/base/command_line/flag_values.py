"""The kinds of values of flags: their parsers, and descriptions of valid values for error messages.

The values of some flags have a form such as `<backend>,<key>=<value>`. It is parsed here.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from conch.base.http.header_patterns import compile_pattern

MAX_FRONTENDS = 64
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class ValueKind:
    """One kind of value. `read` parses text or raises ValueError; `allowed` describes valid values.

    Of commands that use argparse, `read` raises ArgumentTypeError, whose message describes them.
    """

    metavar: str
    allowed: str
    read: Callable[[str], object]
    secret: bool = False  # not to be shown in messages
    choices: tuple[str, ...] = ()  # for argparse
    secret_settings: tuple[str, ...] = ()  # keys of `<name>,<key>=<value>` whose values are secret

    def secrets(self, text: str) -> tuple[str, ...]:
        """Return the parts of a value that other processes must not read, without empty ones."""
        if self.secret:
            return (text,) if text else ()
        key, _, value = text.partition(",")[2].partition("=")
        return (value,) if value and key in self.secret_settings else ()


def value_kind(metavar: str, read: Callable[[str], object] = str) -> ValueKind:
    """Return the kind of values of a command that uses argparse, by default texts."""
    return ValueKind(metavar, "", read)


def one_of(*words: str) -> ValueKind:
    """Return the kind of words that argparse checks."""
    return ValueKind("", "", str, choices=words)


def _read_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered in ("true", "on", "yes", "1"):
        return True
    if lowered in ("false", "off", "no", "0"):
        return False
    raise ValueError(text)


def _read_level(text: str) -> int:
    """Parse a verbosity: a number, or a boolean as in Triton's older releases."""
    try:
        return max(int(text), 0)
    except ValueError:
        return int(_read_boolean(text))


def _read_pattern(text: str) -> str:
    compile_pattern(text)
    return text


def _read_compute_capability(text: str) -> str:
    """Check for `<major>.<minor>` or `<major>`."""
    if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text) is None:
        raise ValueError(text)
    return text


def _read_port_range(text: str) -> str:
    """Check for `<first>-<last>`, or "" for any port."""
    first, _, last = text.partition("-")
    if text and not 0 <= int(first) <= int(last) <= _MAX_PORT:
        raise ValueError(text)
    return text


def integer(unit: str, minimum: int, maximum: int | None = None) -> ValueKind:
    """Return the kind of whole numbers from `minimum` to `maximum`."""
    bounds = f"{minimum} or more" if maximum is None else f"{minimum} to {maximum}"

    def read(text: str) -> int:
        number = int(text)
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError(text)
        return number

    return ValueKind(unit, f"a whole number ({unit}), {bounds}", read)


def choice(*allowed: str) -> ValueKind:
    """Return the kind of words in `allowed`, in any case; the value is the word as in `allowed`."""
    words = {word.lower(): word for word in allowed}

    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]

    return ValueKind("|".join(allowed), "one of " + ", ".join(allowed), read)


def words_of(text: str) -> tuple[str, ...]:
    """Return words between commas, or a list of strings in JSON as vLLM takes it. Raises ValueError."""
    words = json.loads(text) if text.startswith("[") else [word.strip() for word in text.split(",") if text]
    if not all(isinstance(word, str) and word and word.isprintable() for word in words):
        raise ValueError(text)
    return tuple(words)


def _read_frontends(text: str) -> int:
    """Parse a number of frontend processes; 0 for `auto`."""
    number = 0 if text.lower() == "auto" else int(text)
    if text.lower() != "auto" and not 1 <= number <= MAX_FRONTENDS:
        raise ValueError(text)
    return number


def _read_words(text: str) -> str:
    words_of(text)
    return text


FRONTENDS = ValueKind("n|auto", f"auto or a whole number, 1 to {MAX_FRONTENDS}", _read_frontends)
BOOLEAN = ValueKind("true|false", "true or false (also on/off, yes/no, 1/0)", _read_boolean)
LEVEL = ValueKind("n", "a level: 0 for none, 1 and above for more", _read_level)
TEXT = ValueKind("text", "text", str)
WORDS = ValueKind("word,…", "words between commas, or a JSON list of strings", _read_words)
KEY = ValueKind("key", "text", str, secret=True)
PATH = ValueKind("path", "a path", str)
PATTERN = ValueKind("regex", "a regular expression (RE2)", _read_pattern)
PORT = integer("port", 0, _MAX_PORT)
OPTIONAL_PORT = integer("port", -1, _MAX_PORT)
PORT_RANGE = ValueKind("first-last", "a range of ports such as 9000-9999", _read_port_range)
MILLISECONDS = integer("ms", 0)
MILLISECONDS_ABOVE_ZERO = integer("ms", 1)
SECONDS = integer("s", 0)
SECONDS_ABOVE_ZERO = integer("s", 1)
DAYS_ABOVE_ZERO = integer("days", 1)
COUNT = integer("count", 0)
AT_LEAST_ONE = integer("count", 1)
BYTES = integer("bytes", 0)
BYTES_ABOVE_ZERO = integer("bytes", 1)
COMPUTE_CAPABILITY = ValueKind("major.minor", "a compute capability such as 7.5", _read_compute_capability)
DCGM_NAMES = choice("off", "legacy", "4.7", "both")


# ---- settings inside one flag's value --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BackendSetting:
    """`--backend-config=<backend>,<key>=<value>`; without a backend it is for all backends."""

    backend: str  # "": every backend
    key: str
    value: str


def _read_backend_setting(text: str) -> BackendSetting:
    backend, comma, rest = text.partition(",")
    if not comma or "=" in backend:  # `<key>=<value>`, whose value may hold commas
        return BackendSetting("", *_key_and_value(text))
    if not backend:
        raise ValueError(text)
    return BackendSetting(backend, *_key_and_value(rest))


# A setting of `--metrics-config`.
MetricsValue: TypeAlias = bool | int | str | tuple[float, ...]


def _read_metrics_setting(text: str) -> tuple[str, MetricsValue]:
    key, value = _key_and_value(text)
    if key == "summary_quantiles":
        return key, tuple(_read_quantile(pair) for pair in value.split(","))
    if key == "custom_metrics" and value.endswith((".yaml", ".yml", ".py")):
        return key, value
    if key == "otlp_endpoint" and value:
        return key, value
    if key == "otlp_interval_ms" and int(value) > 0:
        return key, int(value)
    if key not in ("counter_latencies", "histogram_latencies", "summary_latencies"):
        raise ValueError(text)
    return key, _read_boolean(value)


def _read_quantile(pair: str) -> float:
    """Return the quantile of a pair `quantile:error`. The error is only checked: sketches are always more precise.

    Of the error the leading number counts, as in Triton: 0.0.1 is 0.0.
    """
    quantile, _, error = pair.partition(":")
    leading = re.match(r"[0-9]+\.?[0-9]*(?:[eE][-+]?[0-9]+)?", error)
    if not 0 <= float(quantile) <= 1 or not 0 <= float(leading.group() if leading else error or 0) <= 1:
        raise ValueError(pair)
    return float(quantile)


# As much as the empty cache of Triton takes, roughly.
_MIN_CACHE_BYTES = 128


@dataclass(frozen=True, slots=True)
class CacheSetting:
    """`--cache-config=<cache>,<key>=<value>`; `size` is that of the local cache in bytes, None for other settings."""

    cache: str
    key: str
    size: int | None = None
    value: str = field(default="", repr=False)  # which may be a password


def _read_cache(text: str) -> CacheSetting:
    name, _, setting = text.partition(",")
    key, value = _key_and_value(setting)
    if not name:
        raise ValueError(text)
    if (name, key) != ("local", "size"):  # `check_options` refuses them
        return CacheSetting(name, key, value=value)
    if int(value) < _MIN_CACHE_BYTES:
        raise ValueError(text)
    return CacheSetting(name, key, int(value))


def _read_cache_size(text: str) -> int:
    size = int(text)
    if size != 0 and size < _MIN_CACHE_BYTES:
        raise ValueError(text)
    return size


@dataclass(frozen=True, slots=True)
class HostPolicySetting:
    """`--host-policy=<policy>,numa-node=<number>` or `--host-policy=<policy>,cpu-cores=<first>-<last>,…`."""

    policy: str
    key: str
    value: str


def _read_host_policy(text: str) -> HostPolicySetting:
    policy, _, rest = text.partition(",")
    key, value = _key_and_value(rest)
    pattern = {"numa-node": r"\d{1,4}", "cpu-cores": r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*"}.get(key)
    if not policy or pattern is None or re.fullmatch(pattern, value) is None:
        raise ValueError(text)
    return HostPolicySetting(policy, key, value)


def _read_gpu_limit(text: str) -> tuple[int, float]:
    """Parse `<device>:<fraction>`."""
    device, _, fraction = text.partition(":")
    if not device.isdecimal() or not 0 <= float(fraction) <= 1:
        raise ValueError(text)
    return int(device), float(fraction)


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """`--rate-limit-resource=<name>:<count>:<device>`; `device` None is every device."""

    name: str
    count: int
    device: int | None = None


def _read_resource_limit(text: str) -> ResourceLimit:
    name, *numbers = text.split(":")
    if not name or not 1 <= len(numbers) <= 2 or not all(number.isdecimal() for number in numbers):
        raise ValueError(text)
    return ResourceLimit(name, *map(int, numbers))


def _read_restriction(text: str) -> str:
    """Check the form only: the categories depend on the frontend."""
    categories, _, pair = text.partition(":")
    _key_and_value(pair)
    if not all(categories.split(",")):
        raise ValueError(text)
    return text


def _key_and_value(text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    if not key or not value:
        raise ValueError(text)
    return key, value


def _form(form: str, read: Callable[[str], object], *, secret: bool = False) -> ValueKind:
    return ValueKind(form, f"the form {form}", read, secret)


BACKEND_SETTING = _form("<backend>,<key>=<value>", _read_backend_setting)
METRICS_SETTING = _form(
    "<kind>_latencies=<true|false>|summary_quantiles=<q>:<error>,…|otlp_endpoint=<url>|otlp_interval_ms=<ms>"
    "|custom_metrics=<file>.yaml|<file>.py",
    _read_metrics_setting,
)
CACHE = ValueKind(
    "local,size=<bytes>|redis,<setting>=<value>",
    f"the form local,size=<bytes>, {_MIN_CACHE_BYTES} or more, or redis,<setting>=<value>",
    _read_cache,
    secret_settings=("password",),
)
CACHE_SIZE = ValueKind(
    "bytes", f"a whole number (bytes): 0 for none, else {_MIN_CACHE_BYTES} or more", _read_cache_size
)
HOST_POLICY = _form("<policy>,numa-node=<n>|<policy>,cpu-cores=<first>-<last>,…", _read_host_policy)
GPU_LIMIT = ValueKind("device:fraction", "a GPU's number and a fraction from 0 to 1, such as 0:0.9", _read_gpu_limit)
RESOURCE_LIMIT = _form("<name>:<count>[:<device>]", _read_resource_limit)
RESTRICTION = _form("<category>,…:<key>=<value>", _read_restriction, secret=True)
