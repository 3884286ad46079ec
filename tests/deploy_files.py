"""The generated files of deploy/. `python -m tests.deploy_files` writes them; a test compares them."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from conch import __version__
from conch.operate.deployment.chart import reference
from conch.operate.deployment.chart.files import chart_file, chart_keys_file, schema_file, value_keys_file, values_file
from conch.operate.deployment.chart.rules_file import rules_file
from conch.operate.deployment.chart.scaling_files import counters_file, pod_metrics_file
from conch.operate.deployment.compose import compose_file, configuration_files, gpu_override
from conch.operate.deployment.kserve.files import kserve_files
from conch.operate.deployment.kubernetes.scaling.adapter_rules import adapter_values_file
from conch.operate.deployment.load_balancers.files import load_balancer_files
from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.monitoring.dashboards.catalog import all_dashboards
from conch.operate.monitoring.dashboards.grafana import dashboard_json

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "conch"

# A file, and what makes its text.
FILES: dict[Path, Callable[[], str]] = {
    CHART / "Chart.yaml": lambda: chart_file(__version__),
    CHART / "files" / "chart-keys.yaml": chart_keys_file,
    CHART / "files" / "value-keys.yaml": value_keys_file,
    CHART / "values.yaml": values_file,
    CHART / "values.schema.json": schema_file,
    ROOT / "docs" / "reference" / "values.md": reference.page,
    CHART / "files" / "adapter-rules.yaml": adapter_values_file,
    CHART / "files" / "counters.yaml": counters_file,
    CHART / "files" / "pod-metrics.yaml": pod_metrics_file,
    CHART / "files" / "rules.yaml": rules_file,
    **{CHART / "files" / "dashboards" / f"{each.uid}.json": partial(dashboard_json, each) for each in all_dashboards()},
    **{ROOT / "deploy" / "kserve" / path: text for path, text in kserve_files(__version__)},
    ROOT / "deploy" / "compose.yaml": lambda: compose_file(DeploymentValues(), __version__),
    ROOT / "deploy" / "compose.gpu.yaml": gpu_override,
    **{ROOT / "deploy" / "compose" / path: partial(str, text) for path, text in configuration_files().items()},
    **{ROOT / "deploy" / "load-balancers" / path: text for path, text in load_balancer_files()},
}


def outdated() -> Iterator[Path]:
    """Yield the files that differ from what their functions make."""
    for path, text in FILES.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text():
            yield path


if __name__ == "__main__":
    for changed in list(outdated()):
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_text(FILES[changed](), encoding="utf-8")
        print(changed.relative_to(ROOT))
