"""Which replicas are deleted first, the command of a replica, and what the fleet rejects before it starts."""

from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.operate.fleet.child import find_programs
from conch.operate.fleet.command import fleet
from conch.operate.fleet.prometheus import configuration
from conch.operate.fleet.replicas import Replica, ReplicaSettings, to_delete
from conch.operate.fleet.timing import Timing

HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: conch}
spec:
  scaleTargetRef: {kind: Deployment, name: conch}
  maxReplicas: 2
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
"""

SCALED_OBJECT = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: conch}
spec:
  scaleTargetRef: {name: conch}
  triggers: [{type: cpu, metricType: Utilization, metadata: {value: "80"}}]
"""


def replica(name: str, created_s: float, *, ready: bool) -> Replica:
    made = Replica(name, Path(), ReplicaSettings([]), created_s)
    made.ready = ready
    return made


def test_replicas_that_are_not_ready_are_deleted_first_then_the_newest() -> None:
    replicas = [replica("old", 1, ready=True), replica("new", 3, ready=True), replica("starting", 2, ready=False)]
    assert [replica.name for replica in to_delete(replicas, 2)] == ["starting", "new"]
    assert to_delete(replicas, 0) == []


def test_a_replica_listens_on_loopback_and_any_free_port() -> None:
    command = ReplicaSettings([Path("/m")], ["--log-verbose=1"], 5).command()
    assert {"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"} < set(command)
    assert {"--model-repository=/m", "--exit-timeout-secs=5", "--log-verbose=1", "--http-port=0"} < set(command)


def test_intervals_of_prometheus_are_shortened_together() -> None:
    intervals = configuration(Timing(6), "conch", Path("rules"), Path("targets"))["global"]
    assert set(intervals.values()) == {"1000ms"}


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("conch.operate.fleet.child._SEARCH", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"prometheus and nginx not found on PATH; .* apt-get install prometheus nginx"
    ):
        find_programs(("prometheus", "nginx"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HPA, "a metric of type Resource is not supported by conch fleet"),
        (SCALED_OBJECT, "a trigger of type cpu is not supported by conch fleet"),
        ("kind: Deployment", "0 objects of the kinds HorizontalPodAutoscaler and ScaledObject, expected one"),
        ("a: [", "invalid YAML"),
    ],
)
def test_an_autoscaler_that_cannot_work_is_rejected(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hpa.yaml").write_text(text)
    assert fleet(["up", f"--model-repository={tmp_path}", f"--hpa={tmp_path / 'hpa.yaml'}"]) == 1
    assert message in capsys.readouterr().err
