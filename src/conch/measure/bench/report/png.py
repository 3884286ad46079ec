"""The main plots of a certificate as an image, with matplotlib."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conch.base.errors import InvalidRequest
from conch.measure.bench.measurement import Measurement
from conch.measure.bench.report.certificate import Certificate, verdict_lines
from conch.measure.bench.report.certificate_file import write_atomically
from conch.measure.bench.report.quantity import SECONDS, format_value
from conch.measure.bench.report.scaling import work_rate, work_unit
from conch.measure.bench.report.target_line import target_line

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#b0579a", "#c28a00", "#b3261e")
_INCHES = (12.0, 7.5)
_DPI = 110


def write_png(certificate: Certificate, path: Path) -> None:
    """Write the plots, atomically. Raises OSError, ImportError without matplotlib, InvalidRequest without figures."""
    write_atomically(path, to_png(certificate))


def to_png(certificate: Certificate) -> bytes:
    """Return throughput and latency over the levels, the distribution of latency, and the course of the last level."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    levels = [each for each in certificate.measurements if each.latency is not None]
    if not levels:
        raise InvalidRequest("--png: no request was successful, so there is nothing to draw")
    # Names of models and servers may have a "$": it is not mathematics.
    with rc_context({"text.parse_math": False, "axes.prop_cycle": f"cycler('color', {list(_COLORS)})"}):
        figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
        figure.suptitle(
            _printable("\n".join([target_line(certificate.target), *verdict_lines(certificate)[:2]])), fontsize=11
        )
        axes = figure.subplots(2, 2)
        _throughput(axes[0][0], levels)
        _latency(axes[0][1], levels)
        _distribution(axes[1][0], levels)
        _course(axes[1][1], levels[-1])
        for each in axes.flat:
            each.grid(alpha=0.25)
            each.spines[["top", "right"]].set_visible(False)
        out = io.BytesIO()
        figure.savefig(out, format="png")
    return out.getvalue()


def _throughput(axes: Any, levels: Sequence[Measurement]) -> None:
    labels = [_printable(each.level.label) for each in levels]
    axes.set(title="Throughput", xlabel=levels[0].level.kind, ylabel=work_unit(levels))
    axes.bar(range(len(levels)), [work_rate(each) for each in levels], width=0.7)
    axes.set_xticks(range(len(levels)), labels)


def _latency(axes: Any, levels: Sequence[Measurement]) -> None:
    axes.set(title="Latency over throughput", xlabel=work_unit(levels), yscale="log")
    for name in ("50", "95", "99"):
        values = [each.latency.percentiles[name].value for each in levels if each.latency]
        axes.plot([work_rate(each) for each in levels], values, marker="o", label=f"P{name}")
    _time_axis(axes.yaxis)
    axes.legend(frameon=False)


def _distribution(axes: Any, levels: Sequence[Measurement]) -> None:
    axes.set(title="Cumulative latency", xscale="log", ylabel="share of requests")
    for each in levels[: len(_COLORS)]:
        assert each.latency is not None
        edges, shares, done = [], [], 0
        for edge, count in each.latency.histogram:
            done += count
            edges.append(edge)
            shares.append(done / each.latency.count)
        axes.plot(edges, shares, label=_printable(each.level.label))
    _time_axis(axes.xaxis)
    axes.legend(frameon=False, title=levels[0].level.kind)


def _course(axes: Any, level: Measurement) -> None:
    values = level.series.get("throughput", ())[: int(level.warm_up_s + level.window_s)]
    axes.set(title=f"Requests/s over time, {level.level.kind} {_printable(level.level.label)}", xlabel="seconds")
    axes.plot(range(len(values)), values)
    if level.warm_up_s:
        axes.axvspan(0, level.warm_up_s, alpha=0.12, color="gray", label="warm-up")
        axes.legend(frameon=False)
    axes.set_ylim(bottom=0)


def _time_axis(axis: Any) -> None:
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(lambda value, _position: format_value(value, SECONDS))
    axis.set_minor_formatter("")


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)
