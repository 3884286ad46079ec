"""Check the files for monitoring, if what reads them is installed."""

from collections.abc import Iterator, Sequence

from conch.check.finding import Finding, Place
from conch.check.rules import monitoring as rules
from conch.check.served import Served
from conch.check.source import SourceFile

# Words of files that are read. Others, such as models' parameters, are not parsed.
_MARKERS = ("expr:", '"expr"', "\ngroups:", "kind: ServiceMonitor", "kind: PodMonitor", "kind: HorizontalPodAutoscaler")
_MARKERS_OF_OTHERS = ("kind: Service", "kind: Deployment", "kind: DaemonSet", "kind: StatefulSet", "kind: ScaledObject")
_LIMITS = ("\nlimits:", "max_qps", "conch.ai/")
_SUFFIXES = (".yaml", ".yml", ".json")


def check_monitoring(sources: Sequence[SourceFile], served: Served) -> Iterator[Finding]:
    """Check the files of a path together: monitors select Services of other files, and alerts use their records."""
    data = [each for each in sources if each.path.suffix in _SUFFIXES]
    marked = [each for each in data if _has(each, _MARKERS)]
    limited = [each for each in data if _has(each, _LIMITS)]
    scaled = [each for each in data if "kind: ScaledObject" in each.text]
    if not marked and not scaled and not limited:
        return
    try:
        from conch.check.monitoring.autoscalers import check_autoscalers
        from conch.check.monitoring.limits import check_limits
        from conch.check.monitoring.monitors import check_monitors
        from conch.check.monitoring.objects import read_objects
        from conch.check.monitoring.queries import check_queries
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed"
        yield Finding(rules.MONITORING_UNCHECKED, Place((marked or scaled or limited)[0].path), message)
        return
    others = [each for each in data if _has(each, (*_MARKERS, *_MARKERS_OF_OTHERS))]
    objects = read_objects(others)
    yield from check_limits(limited, served.models)
    yield from check_monitors(objects)
    recorded, findings = check_queries(objects, served.metrics)
    yield from findings
    yield from check_autoscalers(objects, recorded)


def _has(source: SourceFile, words: Sequence[str]) -> bool:
    text = f"\n{source.text}"
    return any(word in text for word in words)
