"""Validate objects of the Prometheus operator, KEDA, Traefik and the Gateway API against the schemas of their CRDs."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.npm import npm_package

_OPERATOR, _KEDA = ("@kubernetes-models/prometheus-operator", "6.0.0"), ("@kubernetes-models/keda", "2.0.0")
_TRAEFIK, _GATEWAY = ("@kubernetes-models/traefik", "2.0.0"), ("@kubernetes-models/gateway-api", "2.0.0")
# Kind → package, and its module below that.
_MODULES = {
    **{
        kind: (_OPERATOR, f"monitoring.coreos.com/v1/{kind}")
        for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")
    },
    **{kind: (_KEDA, f"keda.sh/v1alpha1/{kind}") for kind in ("ScaledObject", "TriggerAuthentication")},
}
KINDS = tuple(_MODULES)
_MODULES |= {
    **{kind: (_TRAEFIK, f"traefik.io/v1alpha1/{kind}") for kind in ("IngressRoute", "Middleware", "ServersTransport")},
    **{kind: (_GATEWAY, f"gateway.networking.k8s.io/v1/{kind}") for kind in ("Gateway", "HTTPRoute", "GRPCRoute")},
}
_VALIDATE = """
const [modules, objects] = JSON.parse(require("fs").readFileSync(0));
(async () => {
  const answers = [];
  for (const value of objects) {
    const kind = (await import(modules[value.kind]))[value.kind];
    try { new kind(value).validate(); answers.push(""); } catch (error) { answers.push(String(error.message)); }
  }
  console.log(JSON.stringify(answers));
})();
"""
_PROPERTY = re.compile(r"data\d*\.(\w+)")


def custom_resource_errors(objects: Sequence[dict[str, Any]]) -> list[str]:
    """Return the error of each object, "" if it is valid. Skips the test where npm is missing."""
    used = {kind: _MODULES[kind] for kind in {value["kind"] for value in objects}}
    folders = {package: npm_package(*package) for package in {package for package, _ in used.values()}}
    modules = {kind: str(folders[package] / f"{module}.js") for kind, (package, module) in used.items()}
    text = json.dumps([modules, list(objects)])
    command = ["node", "--no-warnings", "-e", _VALIDATE]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    errors: list[str] = json.loads(done.stdout)
    return [
        error or _unknown(folders[_MODULES[value["kind"]][0]], value)
        for error, value in zip(errors, objects, strict=True)
    ]


def _unknown(package: Path, value: dict[str, Any]) -> str:
    """Return the keys of a spec that no schema of the package has; the API server would drop them."""
    unknown = sorted(set(_keys(value["spec"])) - _properties(package))
    return f"unknown keys: {', '.join(unknown)}" if unknown else ""


@cache
def _properties(package: Path) -> set[str]:
    names: set[str] = set()
    for path in (package / "_schemas").glob("*.js"):
        names |= set(_PROPERTY.findall(path.read_text(encoding="utf-8")))
    return names


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for part in value:
            yield from _keys(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            # Their keys are free.
            if key not in ("labels", "annotations", "metadata", "selector", "behavior"):
                yield from _keys(part)
