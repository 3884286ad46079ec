"""The smaller tables of a certificate: key figures, errors, load generator, GPUs, effects, settings, environment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conch.machine.environment import Environment
from conch.measure.bench.measurement import ClientHealth, Effect, Measurement
from conch.measure.bench.report.certificate import Certificate
from conch.measure.bench.report.number_text import (
    BYTES,
    MISSING,
    PERCENT,
    PLAIN,
    SECONDS,
    Unit,
    format_change,
    format_estimate,
    format_value,
)
from conch.measure.bench.statistics.quantities import errors_of

_TIMES = ("latency", "mean", "p50", "p90", "p95", "p99", "max", "ttft", "itl", "ttfr", "gap")


@dataclass(frozen=True, slots=True)
class FactTable:
    """A table as texts. The first cell of a row is its heading."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def key_figures(certificate: Certificate) -> list[tuple[str, str, str]]:
    """Return name, value and remark of what one looks at first, of the level of saturation or the last one."""
    measured = [measurement for measurement in certificate.measurements if measurement.requests]
    if not measured:
        return []
    wanted = certificate.saturation.level if certificate.saturation else ""
    chosen = next((level for level in measured if level.level.label == wanted), measured[-1])
    at = f"at {chosen.level.kind} {chosen.level.label}" if len(measured) > 1 else ""
    figures = [("Requests/s", *_split(format_estimate(chosen.throughput, PLAIN), at))]
    tokens = chosen.tokens
    if tokens is not None:
        figures.insert(0, ("Output tokens/s", *_split(format_estimate(tokens.output_rate, PLAIN), at)))
        if tokens.first_token is not None:
            figures.append(
                ("TTFT P99", *_split(format_estimate(tokens.first_token.percentiles.get("99"), SECONDS), at))
            )
    if chosen.responses is not None:
        figures.append(("Responses/s", *_split(format_estimate(chosen.responses.rate, PLAIN), at)))
    if chosen.latency is not None:
        figures += [
            (f"Latency P{name}", *_split(format_estimate(chosen.latency.percentiles.get(name), SECONDS), at))
            for name in ("50", "99")
        ]
    if chosen.goodput_ratio is not None:
        figures.append(("Goodput", *_split(format_estimate(chosen.goodput_ratio, PERCENT), at)))
    errors, requests = sum(map(errors_of, measured)), sum(level.requests for level in measured)
    figures.append(("Errors", f"{errors:,}", f"of {requests:,} requests"))
    return figures


def _split(text: str, at: str) -> tuple[str, str]:
    """Return a value, and its interval as a remark."""
    for sign in (" ±", " −"):
        value, separator, interval = text.partition(sign)
        if separator:
            return value, f"{sign.strip()}{interval} {at}".strip()
    return text, at


def error_table(measurements: Sequence[Measurement]) -> FactTable:
    """Return the messages of failed requests."""
    rows = tuple(
        (measurement.level.label, f"{count:,}", message)
        for measurement in measurements
        for message, count in measurement.errors
    )
    return FactTable(("Level", "Count", "Message"), rows)


_HEALTH: tuple[tuple[str, Callable[[ClientHealth], str]], ...] = (
    ("Processes", lambda health: str(health.processes)),
    ("Busiest CPU", lambda health: format_value(health.cpu_ratio, PERCENT)),
    ("CPU cores", lambda health: format_value(health.cpu_cores, PLAIN)),
    ("Send lag P50", lambda health: format_value(health.send_lag_p50_s, SECONDS)),
    ("Send lag P99", lambda health: format_value(health.send_lag_p99_s, SECONDS)),
    ("Loop lag max", lambda health: format_value(health.loop_lag_max_s, SECONDS)),
    ("GC pauses", lambda health: f"{health.gc_pauses:,}"),
    ("GC pause max", lambda health: format_value(health.gc_pause_max_s, SECONDS)),
    ("Steal", lambda health: format_value(health.steal_ratio, PERCENT)),
    ("Throttled", lambda health: format_value(health.throttled_s, SECONDS)),
    ("CPU wait", lambda health: format_value(health.cpu_wait_ratio, PERCENT)),
    ("CPU wait P50", lambda health: format_value(health.cpu_wait_p50_s, SECONDS)),
    ("CPU wait P99", lambda health: format_value(health.cpu_wait_p99_s, SECONDS)),
    ("CPU pressure", lambda health: format_value(health.pressure_ratio, PERCENT)),
)


def health_table(measurements: Sequence[Measurement]) -> FactTable:
    """Return how the load generator kept up, one row per level."""
    rows = tuple(
        (measurement.level.label, *(cell(measurement.client) for _, cell in _HEALTH))
        for measurement in measurements
        if measurement.client
    )
    return FactTable(("Level", *(title for title, _ in _HEALTH)), rows)


def gpu_table(measurements: Sequence[Measurement]) -> FactTable:
    """Return the figures of GPUs, one row per level and GPU."""
    rows = tuple(
        (
            measurement.level.label,
            gpu.name,
            gpu.uuid,
            format_value(gpu.utilization_ratio, PERCENT),
            f"{gpu.power_watts:,.0f} W" if gpu.power_watts is not None else MISSING,
            f"{gpu.energy_joules:,.0f} J" if gpu.energy_joules is not None else MISSING,
            format_value(gpu.memory_used_bytes, BYTES),
        )
        for measurement in measurements
        for gpu in measurement.gpus
    )
    return FactTable(("Level", "GPU", "UUID", "Utilization", "Power", "Energy", "Memory"), rows)


def effect_table(effects: Sequence[Effect]) -> FactTable:
    """Return effects, each with its interval."""
    rows = tuple(
        (
            effect.level,
            effect.quantity,
            format_effect(effect),
            effect.verdict,
            format_estimate(effect.a, quantity_units(effect.quantity)),
            format_estimate(effect.b, quantity_units(effect.quantity)),
        )
        for effect in effects
    )
    return FactTable(("Level", "Quantity", "Change", "Verdict", "A", "B"), rows)


def format_effect(effect: Effect) -> str:
    """Return the change; of a ratio in percentage points."""
    text = format_change(effect.change)
    return text.replace(" %", " points") if effect.quantity == "error_ratio" else text


def quantity_units(quantity: str) -> tuple[Unit, ...]:
    """Return the units of a quantity by its name."""
    if quantity.endswith("ratio"):
        return PERCENT
    return SECONDS if quantity.startswith(_TIMES) else PLAIN


def settings_table(certificate: Certificate) -> FactTable:
    """Return what was measured and how."""
    target = certificate.target
    facts = {
        "URL": target.url,
        "protocol": target.protocol,
        "model": f"{target.model} {target.model_version}".strip(),
        "server": f"{target.server_name} {target.server_version}".strip(),
        "digest of the model's configuration": target.config_digest,
        **{name.replace("_", " "): _text(value) for name, value in certificate.settings.items()},
    }
    return _facts(facts)


def environment_table(environment: Environment) -> FactTable:
    """Return the machine and software of the client."""
    quota = f", quota {environment.cpu_quota:g}" if environment.cpu_quota is not None else ""
    clocks = [
        f"{mhz:,.0f} MHz{remark}"
        for mhz, remark in ((environment.cpu_mhz, ""), (environment.cpu_max_mhz, " at most"))
        if mhz is not None
    ]
    return _facts(
        {
            "CPU": environment.cpu_model,
            "logical CPUs": f"{environment.cpus}, usable {environment.usable_cpus}{quota}",
            "frequency": ", ".join(clocks),
            "governor": environment.governor,
            "memory": format_value(environment.memory_bytes, BYTES),
            "operating system": environment.os,
            "kernel": environment.kernel,
            "virtualization": environment.virtualization,
            "container": environment.container,
            "load average": ", ".join(f"{load:g}" for load in environment.load_average),
            "clock": ", ".join(filter(None, (environment.clock, environment.clock_source))),
            "Python": environment.python,
            "Conch": environment.conch,
            "packages": ", ".join(f"{name} {version}" for name, version in environment.packages.items()),
        }
    )


def _facts(facts: dict[str, str]) -> FactTable:
    return FactTable((), tuple((name, value) for name, value in facts.items() if value))


def _text(value: object) -> str:
    if value is None:
        return ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
