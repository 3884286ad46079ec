"""Plain sentences about the causes of a request's time, or of a percentile."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from conch.base.report.axis import seconds
from conch.domain.causes.cause import CAUSES
from conch.domain.causes.explain import Explainer
from conch.domain.causes.parts import RequestParts
from conch.domain.causes.percentile import Percentile, RankedCause
from conch.domain.causes.processors import processors_used
from conch.domain.events.layout import WHY_NOW

_MIN_SHARE: Final = 0.1  # of a further cause
_MAX_CAUSES: Final = 3
_MIN_SHORT: Final = 0.01  # of a cause in the short form
_MAX_MEMBERS: Final = 3
_MAX_REASONS: Final = 3
_MIN_REASON: Final = 0.005
_MIN_OWN_SHARE: Final = 0.6  # of the processors
_Item = TypeVar("_Item")
# Why a batch ran when it did → how a sentence says it.
_WHY_NOW: Final = {
    "full": "they were full",
    "preferred": "they had a preferred size",
    "closed": "the next request did not fit or had other shapes",
    "delay over": "the queue delay was over",
    "idle": "an instance was idle and the model has no queue delay",
    "deadline": "a request had to start to meet its deadline",
    "sequence": "their sequences had nothing more",
}


def time_text(ns: float) -> str:
    """Return a time with a unit: 12.5 ms."""
    return seconds(ns / 1e9)


def totals(request: RequestParts) -> list[tuple[str, str, int]]:
    """Return (cause, model, ns) of a request with those of its nested requests, the longest first."""
    sums = Counter[tuple[str, str]]()
    for part in request.leaves():
        sums[part.cause, part.model] += part.ns
    return [(cause, model, ns) for (cause, model), ns in sums.most_common()]


def main_cause(request: RequestParts) -> tuple[str, str]:
    """Return the cause of most of a request's time, and the model with most of it; empty for one without times."""
    causes = _by_cause(request)
    return next(((cause, model) for cause, model, _ in totals(request) if cause == causes[0][0]), ("", ""))


def request_sentence(request: RequestParts) -> str:
    """Return such as `41.2 ms: 92 % requests ahead in the queue of "detector" (38 ms); add instances, …`."""
    causes = _by_cause(request)
    if not causes:
        return "the event log has no times of this request"
    shown = [cause for cause in causes[:_MAX_CAUSES] if cause is causes[0] or cause[1] >= _MIN_SHARE * request.ns]
    texts = list[str]()
    for cause, ns in shown:
        models = {model: own_ns for name, model, own_ns in totals(request) if name == cause}
        phrase = _phrase(cause, _main([*models], [*models.values()]))
        texts.append(f"{ns / max(request.ns, 1):.0%} {phrase} ({time_text(ns)})")
    return f"{time_text(request.ns)}: {', '.join(texts)}; {CAUSES[causes[0][0]].remedy}"


def short_text(request: RequestParts) -> str:
    """Return causes with milliseconds in the form of Server-Timing: `large;dur=159.012, compute;dur=15.031`."""
    shown = [f"{cause};dur={ns / 1e6:.3f}" for cause, ns in _by_cause(request) if ns >= _MIN_SHORT * request.ns]
    return ", ".join(["total;dur=" + f"{request.ns / 1e6:.3f}", *shown])


def _by_cause(request: RequestParts) -> list[tuple[str, int]]:
    sums = Counter[str]()
    for part in request.leaves():
        sums[part.cause] += part.ns
    return sums.most_common()


def percentile_sentence(percentile: Percentile) -> str:
    """Return what makes the slow requests slow, in one sentence."""
    first = percentile.causes[0]
    count = f"{percentile.number:,} request{'s' * (percentile.number != 1)}"
    who = f"The slowest {100 - percentile.percentile:.3g} % ({count}, from {time_text(percentile.threshold_ns)})"
    groups = dict[str, list[RankedCause]]()
    for cause in percentile.causes:
        groups.setdefault(cause.cause, []).append(cause)
    if not percentile.differs:
        main = _main(groups[first.cause], [cause.slow_ns for cause in groups[first.cause]])
        slow_ns = sum(cause.slow_ns for cause in main)
        return (
            f"{who} take about as long as ordinary ones, {time_text(percentile.slow_ns)} on average: "
            f"{slow_ns / max(percentile.slow_ns, 1):.0%} {_phrase(first.cause, [cause.model for cause in main])} "
            f"({time_text(slow_ns)}); {CAUSES[first.cause].remedy}"
        )
    more = percentile.slow_ns - percentile.ordinary_ns
    texts = list[str]()
    for name, group in [*groups.items()][:_MAX_CAUSES]:
        main = _main(group, [cause.more_ns for cause in group])
        slow_ns, ordinary_ns = sum(cause.slow_ns for cause in main), sum(cause.ordinary_ns for cause in main)
        if name == first.cause or slow_ns - ordinary_ns >= _MIN_SHARE * more:
            phrase = _phrase(name, [cause.model for cause in main])
            times = f"{time_text(slow_ns)}, ordinarily {time_text(ordinary_ns)}"
            texts.append(f"{(slow_ns - ordinary_ns) / more:.0%} {phrase} ({times})")
    return (
        f"{who} take {time_text(percentile.slow_ns)} on average, ordinary ones {time_text(percentile.ordinary_ns)}; "
        f"of the difference, {', '.join(texts)}; {CAUSES[first.cause].remedy}"
    )


def batch_text(explainer: Explainer, number: int) -> str:
    """Return what is known of a batch: `batch 17 on preprocess_0: 1 request (#1840), 288 MB, computed 182 ms`."""
    known = explainer.batch(number)
    if known is None:
        return f"batch {number}, which the event log does not have"
    batch, members = known
    numbers = [_client_request(explainer, int(member)) for member in members["number"][:_MAX_MEMBERS]]
    more = len(members) - len(numbers)
    who = ", ".join(numbers) + (f" and {more} more" if more > 0 else "")
    count, instance = int(batch["members"]), explainer.log.names[int(batch["instance"])]
    done = int(batch["infer_done"] or batch["released"] or explainer.log.monotonic_ns)
    usual = explainer.usual_ns(batch)
    usual_text = f", usually {time_text(usual)}" if usual else ""
    return (
        f"batch {number} on {instance}: {count} request{'s' * (count != 1)} ({who}), "
        f"{_bytes_text(int(members['input_bytes'].sum()))}, computed {time_text(done - int(batch['started']))}"
        + usual_text
    )


def _client_request(explainer: Explainer, number: int) -> str:
    """Return number and id of the client's request on whose behalf a request was made."""
    root = explainer.root(number)
    ids = explainer.log.tables["ids"]
    texts = [explainer.log.names[int(text)] for text in ids["text"][ids["request"] == root]]
    return f"#{root}" + (f" {texts[0]}" if texts else "")


def batching_sentence(explainer: Explainer, model: str) -> str:
    """Return how large the batches of a model are and why they ran, "" for a model that batches no requests."""
    names = list(explainer.log.names)
    batches = explainer.log.batches
    batches = batches[batches["model"] == names.index(model)] if model in names else batches[:0]
    reasons = Counter(WHY_NOW[int(number)] for number in batches["why_now"] if WHY_NOW[int(number)] in _WHY_NOW)
    if not reasons:
        return ""
    shares = [(why, count / len(batches)) for why, count in reasons.most_common(_MAX_REASONS)]
    texts = [f"{share:.0%} because {_WHY_NOW[why]}" for why, share in shares if share >= _MIN_REASON]
    mean = f"{batches['members'].mean():.2g}"
    requests = "request" if mean == "1" else "requests"
    return f'{len(batches):,} batches of "{model}" have {mean} {requests} on average: they ran {", ".join(texts)}'


def waits(request: RequestParts) -> list[tuple[int, int]]:
    """Return (batch, ns) of the batches of others behind which a request waited, the longest first."""
    sums = Counter[int]()
    for part in request.leaves():
        if part.batch and part.batch != _own(request, part.model):
            sums[part.batch] += part.ns
    return sums.most_common()


def _own(request: RequestParts, model: str) -> int:
    return next((int(step.row["batch"]) for _, step in request.walk() if step.model == model), 0)


def processors_sentence(explainer: Explainer, requests: Iterable[RequestParts]) -> str:
    """Return how much this server itself used while requests waited for a processor, "" if that is unknown."""
    waits = [(part.start, part.end) for request in requests for part in request.leaves() if part.cause == "cpu"]
    used, cores = processors_used(explainer.log, waits), float(explainer.log.server.get("cores") or 0)
    if not used or not cores:
        return ""
    share = min(used / cores, 1)
    return (
        f"While they waited for a processor, executions of this server used {share:.0%} of its {cores:g} processors: "
        + ("they take them from each other" if share >= _MIN_OWN_SHARE else "something else took the rest")
    )


def _main(group: Sequence[_Item], weights: Sequence[float]) -> list[_Item]:
    """Return the items of a cause, the heaviest first, without those of a small part of it."""
    ranked = sorted(zip(weights, group, strict=True), key=lambda pair: -pair[0])
    least = _MIN_SHARE * sum(weights)
    return [item for weight, item in ranked if weight >= least] or [ranked[0][1]]


def _phrase(cause: str, models: Sequence[str]) -> str:
    """Return how a sentence says a cause of models: `"a", "b" and "c" being ready to run without a processor`."""
    *others, last = models
    return CAUSES[cause].phrase.format(model='", "'.join(others) + f'" and "{last}' if others else last)


def _bytes_text(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit} of inputs"
    return f"{size:.0f} bytes of inputs"
