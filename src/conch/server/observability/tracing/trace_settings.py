"""Triton's trace settings, global and per model, which clients can change, and the sampling of requests.

A model inherits the settings that it does not override from the global ones, and these from the server's options. One
of every `rate` requests is traced until `count` is used up. Every change restarts both counters; a model that does not
override the count inherits what is left of the global one, as in Triton.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from conch.base.errors import InvalidRequest, Unsupported
from conch.server.options.trace import LEVELS, MAX_COUNT, MAX_RATE, TRITON, TraceOptions, ordered_levels

# Settings by their names in the protocol; None resets a setting.
Changes: TypeAlias = Mapping[str, Sequence[str] | None]

_NUMBERS = {"trace_rate": (0, MAX_RATE), "trace_count": (-1, MAX_COUNT), "log_frequency": (0, MAX_RATE)}


class TraceRules:
    """The effective settings of a model or globally, with their counters."""

    def __init__(self, settings: Mapping[str, Any], own: dict[str, Any]) -> None:
        """Begin to count. `settings` are by their names in the protocol, `own` those that are not inherited."""
        self.levels: tuple[str, ...] = settings["trace_level"]
        self.rate: int = settings["trace_rate"]
        self.count: int = settings["trace_count"]  # remaining; -1 for no limit
        self.log_frequency: int = settings["log_frequency"]
        self.counted = self.count >= 0
        self.own = own
        self._seen = 0

    @property
    def inherited(self) -> dict[str, Any]:
        """What a model inherits: the settings by name, with the count that is left."""
        return {
            "trace_level": self.levels,
            "trace_rate": self.rate,
            "trace_count": self.count,
            "log_frequency": self.log_frequency,
        }

    def sample(self, *, forced: bool = False) -> bool:
        """Count a request, and return whether it is traced; `forced`: regardless of rate and count."""
        if not self.levels:
            return False
        if self.rate == 0:
            return forced
        self._seen += 1
        if self._seen % self.rate or self.count == 0:
            return forced
        if self.count > 0:
            self.count -= 1
        return True

    @property
    def exhausted(self) -> bool:
        """Whether requests are only traced if forced."""
        return not self.levels or self.count == 0 or self.rate == 0


class TraceSettings:
    """The settings of a server. All methods run on the event loop's thread."""

    def __init__(self, options: TraceOptions) -> None:
        self.options = options
        self._start = {
            "trace_level": options.levels,
            "trace_rate": options.rate,
            "trace_count": options.count,
            "log_frequency": options.log_frequency,
        }
        self._global = TraceRules(self._start, {})
        self._models: dict[str, TraceRules] = {}

    @property
    def on(self) -> bool:
        """Whether any request may be traced."""
        forcible = self.options.mode != TRITON
        return any(
            rules.levels and (forcible or not rules.exhausted) for rules in (self._global, *self._models.values())
        )

    def rules(self, model: str) -> TraceRules:
        """Return the effective settings of a model, or the global ones for ""."""
        return self._models.get(model, self._global)

    def document(self, model: str, mode_settings: Mapping[str, str]) -> dict[str, str | list[str]]:
        """Return the settings of a model by their names in the protocol, with those of the mode."""
        rules = self.rules(model)
        document: dict[str, str | list[str]] = {
            "trace_level": list(rules.levels) or ["OFF"],
            "trace_rate": str(rules.rate),
            "trace_count": str(rules.count),
        }
        if self.options.mode == TRITON:
            document |= {"log_frequency": str(rules.log_frequency), "trace_file": self.options.file}
        document["trace_mode"] = self.options.mode
        document.update(mode_settings)
        return document

    def update(self, model: str, changes: Changes) -> None:
        """Change the settings of a model, or the global ones for "".

        Raises InvalidRequest, or Unsupported for the trace file; then no setting is changed.
        """
        if "trace_file" in changes:
            raise Unsupported("trace file location can not be updated through network protocol")
        own = dict(self._models[model].own if model in self._models else {} if model else self._global.own)
        for name, values in changes.items():
            if name not in self._start:
                continue  # unknown names are ignored, as in Triton
            if values is None:
                own.pop(name, None)
                continue
            value = _levels(values) if name == "trace_level" else _number(name, values)
            if value is not None:
                own[name] = value
        if model:
            rules = self._checked(self._global.inherited | own, own)
            if own:
                self._models[model] = rules
            else:
                self._models.pop(model, None)
            return
        global_rules = self._checked(self._start | own, own)
        models = {
            name: self._checked(global_rules.inherited | rules.own, rules.own) for name, rules in self._models.items()
        }
        self._global, self._models = global_rules, models

    def _checked(self, settings: Mapping[str, Any], own: dict[str, Any]) -> TraceRules:
        rules = TraceRules(settings, own)
        reason = ""
        if rules.levels and rules.rate == 0:
            reason = "sample rate must be non-zero"
        elif rules.levels and self.options.mode == TRITON and not self.options.file:
            reason = "trace file name is not given"
        elif "TENSORS" in rules.levels and self.options.mode != TRITON:
            reason = "spans of OpenTelemetry hold no tensors"
        if reason:
            raise InvalidRequest(f"Attempting to set invalid trace setting :{reason}")
        return rules


def _levels(names: Sequence[str]) -> tuple[str, ...] | None:
    """Parse levels; unknown names are ignored, as in Triton. Return None if there is no known one."""
    levels = [name for name in names if name in (*LEVELS, "OFF")]
    if "OFF" in levels and len(names) > 1:
        raise InvalidRequest("Expect only one trace level 'OFF' is specified")
    return ordered_levels(levels) if levels else None


def _number(name: str, values: Sequence[str]) -> int:
    minimum, maximum = _NUMBERS[name]
    if len(values) != 1:
        raise InvalidRequest(f"expect only 1 value for '{name}'")
    text = values[0]
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise InvalidRequest(f"Unable to parse '{name}', got: {text[:40]}")
    number = int(digits) if len(digits) <= 20 else maximum + 1  # the time of int() is quadratic in the digits
    number = -number if text.startswith("-") else number
    if name == "trace_count" and number < minimum:
        raise InvalidRequest(f"Unable to parse 'trace_count'. Expecting value >= -1, got: {text[:40]}")
    if not minimum <= number <= maximum:
        raise InvalidRequest(
            f"Unable to parse '{name}', value is out of range [ {minimum}, {maximum} ], got: {text[:40]}"
        )
    return number
