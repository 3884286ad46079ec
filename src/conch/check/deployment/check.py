"""Check deployment files together: manifests, charts, Dockerfiles, compose files, Terraform, scripts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from conch.check.deployment.charts import CHART_FILE, render_charts
from conch.check.deployment.command_lines import check_command_lines, fenced_lines
from conch.check.deployment.dockerfiles import check_dockerfile, is_dockerfile
from conch.check.deployment.plain_text import check_known_secrets, check_shm_variable, check_tunnels
from conch.check.deployment.terraform import check_terraform, embedded_yaml
from conch.check.finding import Finding, Place
from conch.check.python.check import DeclaredMetric
from conch.check.source import SourceFile

_DATA = (".yaml", ".yml", ".json", ".tf")
# Words of files that are read. Others, such as models' parameters, are not parsed.
_MARKERS = ("kind:", "services:", "expr:", '"expr"', "\ngroups:", "\nlimits:", "max_qps", "conch.ai/")


@dataclass(frozen=True, slots=True)
class Served:
    """The names of models, none if the path has no repository, and the custom metrics of Python code by name."""

    models: frozenset[str] = frozenset()
    metrics: Mapping[str, DeclaredMetric] = field(default_factory=dict)


def check_deployment(sources: Sequence[SourceFile], served: Served) -> Iterator[Finding]:
    """Check all files of a path: those that are read as lines, then objects, which refer to each other."""
    for source in sources:
        yield from _lines_of(source)
    charts, findings = render_charts(sorted({file.path.parent for file in sources if file.path.name == CHART_FILE}))
    yield from findings
    rendered = [template for chart in charts for template in chart.sources]
    # A template that was rendered is not read as it is.
    templates = {template.path for template in rendered}
    written = [file for file in sources if file.path not in templates]
    written += [text for file in sources if file.path.suffix == ".tf" for text in embedded_yaml(file)]
    problems = list(_check_data([*written, *rendered], served))
    for source in rendered:
        problems += [*check_command_lines(source), *check_shm_variable(source)]
    for finding in problems:
        chart = next((chart for chart in charts if finding.place.path.is_relative_to(chart.directory)), None)
        yield chart.relocated(finding) if chart else finding


def _lines_of(source: SourceFile) -> Iterator[Finding]:
    suffix = source.path.suffix
    if suffix != ".json":
        yield from check_command_lines(source)
        yield from check_tunnels(source)
        if suffix == ".md":
            code = fenced_lines(source.text.split("\n"))
            yield from (finding for finding in check_shm_variable(source) if finding.place.line - 1 in code)
        else:
            yield from check_shm_variable(source)
            yield from check_known_secrets(source)
    if is_dockerfile(source):
        yield from check_dockerfile(source)
    elif suffix == ".tf":
        yield from check_terraform(source)


def _check_data(sources: Sequence[SourceFile], served: Served) -> Iterator[Finding]:
    """Check what files of YAML and JSON contain, if the packages that read them are installed."""
    marked = [
        source
        for source in sources
        if source.path.suffix in _DATA and any(word in f"\n{source.text}" for word in _MARKERS)
    ]
    if not marked:
        return
    try:
        from conch.check.deployment.cluster import check_facts, check_services
        from conch.check.deployment.limits_files import check_limits, is_limits_file
        from conch.check.deployment.objects import pod_owners, read_objects
        from conch.check.deployment.queries import check_queries
        from conch.check.deployment.schema import check_schemas
        from conch.check.deployment.workloads import check_compose, check_init_containers, check_workload, is_compose
    except ModuleNotFoundError as error:
        message = f"manifests and files for monitoring were not checked: the package {error.name} is not installed"
        yield Finding("monitoring-unchecked", Place(marked[0].path), message)
        return
    objects, faults = read_objects(marked)
    limits = {source.path for source in marked if is_limits_file(source)}  # the reader of limits reports their syntax
    yield from (fault for fault in faults if fault.place.path not in limits)
    yield from check_limits(marked, objects, served.models)
    recorded, findings = check_queries(objects, served.metrics)
    yield from findings
    yield from check_facts(objects, recorded)
    workloads = pod_owners(objects)
    yield from check_schemas(objects)
    for workload in workloads:
        yield from check_workload(workload)
    yield from check_services(objects, workloads)
    yield from check_init_containers(filter(is_dockerfile, sources), workloads)
    for source in objects:
        if is_compose(source):
            yield from check_compose(source)
