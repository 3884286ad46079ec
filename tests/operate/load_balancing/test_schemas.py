"""Configurations of programs and clouds that are not at hand, against published schemas."""

import copy
import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch.operate.deployment.load_balancers import (
    BalancedReplica,
    ListenerTls,
    LoadBalancer,
    envoy_configuration,
    traefik_configuration,
)
from tests.support.custom_resources import custom_resource_errors

FOLDER = Path(__file__).parents[3] / "deploy" / "load-balancers"
REPLICAS = tuple(BalancedReplica(name, f"{name}.example", weight=2) for name in "ab")
SECURE = LoadBalancer(replicas=REPLICAS, tls=ListenerTls("/tls.pem", "/tls.key"), metrics_port=9901)
DOWN = LoadBalancer(replicas=(*REPLICAS, BalancedReplica("c", "c.example", state="down")))
# The types of the parts of a bootstrap that it does not import itself.
_EXTENSIONS = (
    "filters.network.http_connection_manager.v3",
    "filters.http.router.v3",
    "access_loggers.stream.v3",
    "upstreams.http.v3",
    "transport_sockets.tls.v3",
)
# betterproto2 cannot read this name, which Envoy's schema has.
_UNREADABLE = "enforcing_consecutive_5xx"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def parse_bootstrap(document: dict[str, Any]) -> Any:
    """Parse by Envoy's own message types, which refuse unknown fields."""
    pytest.importorskip("betterproto2", reason="needs envoy-data-plane, of the dev-all extra")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fields that Envoy deprecates
        return _parse_bootstrap(document)


def _parse_bootstrap(document: dict[str, Any]) -> Any:
    for extension in _EXTENSIONS:
        importlib.import_module(f"envoy_data_plane.envoy.extensions.{extension}")
    bootstrap = importlib.import_module("envoy_data_plane.envoy.config.bootstrap.v3").Bootstrap
    cluster = importlib.import_module("envoy_data_plane.envoy.config.cluster.v3")
    readable = copy.deepcopy(document)
    for upstream in readable["static_resources"]["clusters"]:
        assert upstream["outlier_detection"].pop(_UNREADABLE) == 0
    assert _UNREADABLE in cluster.OutlierDetection.__dataclass_fields__
    return bootstrap.from_dict(readable)


@pytest.mark.parametrize("balancer", [SECURE, DOWN], ids=["tls", "down"])
def test_envoy_knows_every_field(balancer: LoadBalancer) -> None:
    parsed = parse_bootstrap(yaml.safe_load(envoy_configuration(balancer)))
    assert bytes(parsed)
    assert [cluster.name for cluster in parsed.static_resources.clusters] == [
        f"{protocol}{kind}" for protocol in ("http", "grpc") for kind in ("", "_sequence", "_prefix")
    ]


def test_an_unknown_field_of_envoy_is_refused() -> None:
    (document,) = documents("envoy/envoy.yaml")
    filters = document["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
    filters[0]["typed_config"]["stream_idle_timeouts"] = "1s"
    with pytest.raises(KeyError, match="stream_idle_timeouts"):
        parse_bootstrap(document)


@pytest.mark.parametrize("name", ["traefik/kubernetes.yaml", "gateway-api/gateway.yaml"])
def test_custom_resources_are_valid(name: str) -> None:
    objects = documents(name)
    assert custom_resource_errors(objects) == [""] * len(objects)


def test_invalid_custom_resources_are_refused() -> None:
    objects = documents("traefik/kubernetes.yaml")
    objects[-1]["spec"]["routes"][0]["services"][0]["passHost"] = True
    assert "passHost" in custom_resource_errors(objects)[-1]


@pytest.mark.parametrize("name", ["aws/nlb.yaml", "aws/alb.yaml"])
def test_objects_of_kubernetes_are_valid(name: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for document in documents(name):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        assert all(isinstance(value, str) for value in document["metadata"]["annotations"].values())


def test_traefik_gets_only_replicas_that_are_ready() -> None:
    document = yaml.safe_load(traefik_configuration(DOWN))
    servers = document["http"]["services"]["grpc"]["loadBalancer"]["servers"]
    assert [server["url"] for server in servers] == ["h2c://a.example:8001", "h2c://b.example:8001"]
    assert yaml.safe_load(traefik_configuration(SECURE))["tls"]["certificates"] == [
        {"certFile": "/tls.pem", "keyFile": "/tls.key"}
    ]
