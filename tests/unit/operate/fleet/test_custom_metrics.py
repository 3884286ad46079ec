"""The API of custom metrics: paths, queries of the shipped adapter rules, objects, errors."""

import pytest

from conch.base.errors import Unavailable
from conch.operate.deployment.chart import adapter_rules
from conch.operate.fleet.custom_metrics import ApiServer, MetricPath, matches, metric_values, parse_path, read_rules
from conch.operate.fleet.prometheus import SeriesValue
from conch.operate.monitoring.promql import parse

RATIO = "triton:queue_compute:ratio"
PATH = f"/apis/custom.metrics.k8s.io/v1beta1/namespaces/ml/pods/*/{RATIO}"


def test_a_path_names_version_namespace_pods_and_metric() -> None:
    assert parse_path(PATH) == MetricPath("v1beta1", "ml", "*", RATIO)
    quoted = PATH.replace("pods/*/triton", "pods%2F%2A%2Ftriton")  # as the kubernetes package for Python sends it
    assert parse_path(quoted) == parse_path(PATH)
    assert parse_path(PATH.replace("*", "a").replace(":", "%3A")) == MetricPath("v1beta1", "ml", "a", RATIO)


@pytest.mark.parametrize(
    "path", ["/", "/apis/custom.metrics.k8s.io/v1beta1", PATH.replace("beta1", ""), PATH.replace("pods", "services")]
)
def test_other_paths_are_not_metrics(path: str) -> None:
    assert parse_path(path) is None


def test_shipped_rules_become_queries_of_one_value_per_pod() -> None:
    rules = read_rules(adapter_rules())
    single, several = rules[RATIO].query("ml", ["a"]), rules[RATIO].query("ml", ["a", "b"])
    assert single == f'max by (pod) ({RATIO}{{namespace="ml",pod="a"}})'
    assert 'pod=~"a|b"' in several
    for rule in rules.values():
        parse(rule.query("ml", ["a"]))


def test_values_are_quantities_and_unknown_ones_are_omitted() -> None:
    rows = [SeriesValue({"pod": "a"}, 1.5, 0.0), SeriesValue({"pod": "b"}, float("nan"), 0.0), SeriesValue({}, 1, 0.0)]
    [item] = metric_values(MetricPath("v1beta1", "ml", "*", RATIO), rows)["items"]
    assert item == {
        "describedObject": {"kind": "Pod", "namespace": "ml", "name": "a", "apiVersion": "/v1"},
        "metricName": RATIO,
        "timestamp": "1970-01-01T00:00:00Z",
        "value": "1500m",
        "selector": None,
    }
    [item] = metric_values(MetricPath("v1beta2", "ml", "*", RATIO), rows)["items"]
    assert item["metric"] == {"name": RATIO}


def test_selectors_are_equalities() -> None:
    labels = {"app": "conch", "app.kubernetes.io/component": "server"}
    assert matches("", labels)
    assert matches("app=conch,app.kubernetes.io/component==server", labels)
    assert not matches("app=other", labels)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    def query(_url: str, expr: str) -> list[SeriesValue]:
        if "pod-down" in expr:
            raise Unavailable("Prometheus does not answer: timed out")
        return [SeriesValue({"pod": "pod-a"}, 2, 0.0)] if "pod-a" in expr else []

    monkeypatch.setattr("conch.operate.fleet.custom_metrics.query", query)
    return ApiServer(
        0,
        read_rules(adapter_rules()),
        "",
        labels={"app": "conch"},
        shorten=lambda expr: expr,
        pods=lambda: ["pod-a", "pod-b", "pod-down"],
        state=dict,
        evict=lambda name: name == "pod-a",
    )


@pytest.mark.parametrize(
    ("pod", "metric", "parameters", "status"),
    [
        ("pod-a", RATIO, {"labelSelector": "app=conch"}, 200),
        ("pod-b", RATIO, {}, 404),
        ("pod-c", RATIO, {}, 404),
        ("pod-a", RATIO, {"labelSelector": "app=other"}, 404),
        ("pod-a", RATIO, {"labelSelector": "app in (conch)"}, 400),
        ("pod-a", RATIO, {"metricLabelSelector": "model=a"}, 400),
        ("pod-a", "unknown", {}, 404),
        ("pod-down", RATIO, {}, 500),
    ],
)
def test_statuses(api: ApiServer, pod: str, metric: str, parameters: dict[str, str], status: int) -> None:
    path = f"/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/pods/{pod}/{metric}"
    code, document = api.get(path, parameters)
    assert code == status
    assert document["kind"] == ("MetricValueList" if status == 200 else "Status")
    assert status == 200 or document["code"] == status


def test_evictions(api: ApiServer) -> None:
    assert api.post("/api/v1/namespaces/default/pods/pod-a/eviction")[0] == 201
    assert api.post("/api/v1/namespaces/default/pods/pod-x/eviction")[1]["reason"] == "NotFound"
    assert api.post("/fleet")[0] == 404
