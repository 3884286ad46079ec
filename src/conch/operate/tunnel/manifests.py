"""Kubernetes objects that make Prometheus scrape a tunnel: Service, EndpointSlice (or Endpoints), ServiceMonitor. Pure.

The Service has no selector, because no pod is behind it, and is headless. What must agree is built from one value here:
the Service's labels and the ServiceMonitor's selector, the name of the port in all three, and the label of the
EndpointSlice that names its Service.
"""

import ipaddress
from argparse import ArgumentTypeError
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from conch.base.command_line.flag_values import one_of, value_kind
from conch.base.command_line.flags import flag_field
from conch.base.command_line.option_types import label, namespace
from conch.base.durations import parse_prometheus_duration

Manifest: TypeAlias = dict[str, Any]
Discovery: TypeAlias = Literal["endpointslice", "endpoints"]
_PORT_NAME = "metrics"
_MANAGER = "conch-tunnel"


def _duration(text: str) -> str:
    """Check a duration as the ServiceMonitor's schema has it."""
    with suppress(ValueError):
        if parse_prometheus_duration(text) > 0:
            return text
    raise ArgumentTypeError(f"'{text}' is not a valid duration: a number with a unit, such as 15s or 1m")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedTunnel:
    """Where Prometheus finds the port of a tunnel, and the labels that its operator and users expect."""

    name: str
    addresses: tuple[str, ...]  # IP addresses of the machine on which the tunnel listens
    port: int
    namespace: str = flag_field("monitoring", "", "default: monitoring", value_kind("NAME", namespace))
    instance: str = flag_field("", "", "value of the label instance (default: NAME)", value_kind("TEXT"))
    monitor_labels: Mapping[str, str] = flag_field(
        {},
        "",
        "label by which your Prometheus selects ServiceMonitors, such as release=kps; repeatable",
        value_kind("NAME=VALUE", label),
        name="monitor-label",
        repeatable=True,
    )
    interval: str = flag_field("15s", "", "of scrapes (default: 15s)", value_kind("DURATION", _duration))
    path: str = flag_field("/metrics", "", "default: /metrics", value_kind("PATH"))
    discovery: Discovery = flag_field(
        "endpointslice",
        "",
        "endpoints: for a Prometheus operator before 0.87, which looks for Endpoints (default: endpointslice)",
        one_of("endpointslice", "endpoints"),
    )


def manifests(tunnel: ScrapedTunnel) -> list[Manifest]:
    """Return the objects. Raises ValueError for an address that Kubernetes rejects."""
    addresses = [_address(text) for text in tunnel.addresses]
    families = {version: [str(address) for address in addresses if address.version == version] for version in (4, 6)}
    if tunnel.discovery == "endpoints":
        backing = [_endpoints(tunnel, [str(address) for address in addresses])]
    else:
        backing = [_slice(tunnel, version, members) for version, members in families.items() if members]
    return [
        _service(tunnel, [f"IPv{version}" for version, members in families.items() if members]),
        *backing,
        _monitor(tunnel),
    ]


def _service(tunnel: ScrapedTunnel, families: list[str]) -> Manifest:
    spec: Manifest = {
        "clusterIP": "None",
        "ipFamilies": families,
        "ipFamilyPolicy": "SingleStack" if len(families) == 1 else "RequireDualStack",
        "ports": [{"name": _PORT_NAME, "port": tunnel.port, "protocol": "TCP", "targetPort": tunnel.port}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(tunnel, _labels(tunnel)), "spec": spec}


def _slice(tunnel: ScrapedTunnel, version: int, addresses: list[str]) -> Manifest:
    labels = {
        **_labels(tunnel),
        "kubernetes.io/service-name": tunnel.name,
        "endpointslice.kubernetes.io/managed-by": _MANAGER,
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {**_metadata(tunnel, labels), "name": f"{tunnel.name}-ipv{version}"},
        "addressType": f"IPv{version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        "ports": [{"name": _PORT_NAME, "port": tunnel.port, "protocol": "TCP"}],
    }


def _endpoints(tunnel: ScrapedTunnel, addresses: list[str]) -> Manifest:
    """Return an Endpoints object, which Kubernetes mirrors to EndpointSlices."""
    subset = {
        "addresses": [{"ip": address} for address in addresses],
        "ports": [{"name": _PORT_NAME, "port": tunnel.port, "protocol": "TCP"}],
    }
    metadata = _metadata(tunnel, _labels(tunnel))
    return {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [subset]}


def _monitor(tunnel: ScrapedTunnel) -> Manifest:
    endpoint = {
        "port": _PORT_NAME,
        "path": tunnel.path,
        "interval": tunnel.interval,
        # Labels such as pod and namespace describe the exporter's side, not this cluster.
        "honorLabels": True,
        "relabelings": [
            {"action": "replace", "targetLabel": "instance", "replacement": tunnel.instance or tunnel.name}
        ],
    }
    spec: Manifest = {
        "selector": {"matchLabels": _labels(tunnel)},
        "namespaceSelector": {"matchNames": [tunnel.namespace]},
        "endpoints": [endpoint],
    }
    if tunnel.discovery == "endpointslice":
        spec["serviceDiscoveryRole"] = "EndpointSlice"
    labels = {**_labels(tunnel), **tunnel.monitor_labels}
    metadata = _metadata(tunnel, labels)
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": metadata, "spec": spec}


def _metadata(tunnel: ScrapedTunnel, labels: Mapping[str, str]) -> Manifest:
    return {"name": tunnel.name, "namespace": tunnel.namespace, "labels": dict(labels)}


def _labels(tunnel: ScrapedTunnel) -> dict[str, str]:
    """Return the labels of the Service, which the ServiceMonitor selects."""
    return {"app.kubernetes.io/name": _MANAGER, "app.kubernetes.io/instance": tunnel.name}


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a valid IP address; an EndpointSlice of a Service needs one") from None
    if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
        raise ValueError(
            f"Kubernetes rejects endpoints at {text}: use the node's address in the cluster's network, and bind the "
            f"tunnel to it (--forward=ADDRESS:PORT:HOST:PORT --allow-remote-bind)"
        )
    return address
