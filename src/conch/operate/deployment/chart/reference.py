"""The reference page of all values, `docs/reference/values.md`."""

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from conch.operate.deployment.values.deployment import DeploymentValues
from conch.operate.deployment.values.description import ValueKey, constraints, keys, plain_type
from conch.operate.deployment.values.other_charts import ACCEPTED_NAMES
from conch.operate.deployment.values.section import MAX_INT32, Section

_PAGE = """\
# Values of the chart and of `conch k8s render`

    helm install gpt2 deploy/helm/conch --values my-values.yaml --set image.tag=0.1.0
    conch k8s render gpt2 --values my-values.yaml --set image.tag=0.1.0 | kubectl apply -f -

create the same objects: the values are one set of typed Python classes (`operate/deployment/values`), from which
`values.yaml` and `values.schema.json` are generated. Unknown keys, values of another type and values that contradict
each other are refused by both, with the place and what is allowed there. `null` removes a default of a mapping that
Kubernetes defines, such as `podSecurityContext: {runAsUser: null}`. The chart needs Kubernetes 1.30 or later.

* **Probes.** A server is live as soon as it listens, and ready when its models are loaded. The startup and the liveness
  probe ask for the former, so that a load of any length ends no pod; the readiness probe asks for the latter.
* **Termination.** The pod serves for `termination.preStopSeconds` while load balancers remove it, then gets SIGTERM and
  answers what is in flight for `server.exitTimeoutSecs`. The grace period is their sum and `termination.marginSeconds`.
* **Writing.** The root file system is read-only; the server writes to volumes at `/tmp`, `/cache` and `/dev/shm`.
* **Labels.** All objects have `app: <release>`, the pods also `app.kubernetes.io/component: server`.
* **Secrets.** The chart contains references to Secrets, never their values. A Secret is created once:

      kubectl create secret generic hf-model-pull --from-literal=password=<HF_access_token>
      kubectl create secret docker-registry ngc-container-pull --docker-server=nvcr.io --docker-username='$oauthtoken' …

[Kubernetes](../kubernetes.md) leads from an empty cluster to a model that scales. Files of values for examples are
beside the chart: [gpt2_values.yaml](../../deploy/helm/conch/gpt2_values.yaml) and
[examples](../../deploy/helm/conch/examples).

"""

_OTHER_CHARTS = """
## Names of other charts

Files of values for NVIDIA's autoscaling chart for TensorRT-LLM and for `nvidia-triton-server` work with these names.
Where both names are given, the other chart's takes effect.

| Other charts' name | Name |
|---|---|
"""
_TABLE = "| Key | Type | Default | Meaning |\n|---|---|---|---|\n"


def page() -> str:
    """Return the page."""
    plain: list[ValueKey] = []
    sections: dict[str, list[ValueKey]] = {}
    titles: dict[str, str] = {}
    for key in keys(DeploymentValues()):
        top = key.path[0]
        if key.is_section and len(key.path) == 1:
            titles[top] = key.description
        elif top in titles and not key.is_section:
            sections.setdefault(top, []).append(key)
        elif not key.is_section:
            plain.append(key)
    parts = [_PAGE, "## Top level\n\n", _TABLE, *map(_row, plain)]
    for top, found in sections.items():
        parts += [f"\n## {top}\n\n{titles[top]}.\n\n", _TABLE, *map(_row, found)]
    parts += [_OTHER_CHARTS, *(f"| `{other}` | `{own}` |\n" for other, own in ACCEPTED_NAMES.items())]
    return "".join(parts)


def _row(key: ValueKey) -> str:
    default = json.dumps(msgspec.to_builtins(key.default), ensure_ascii=False)
    cells = (f"`{'.'.join(key.path)}`", _type(key.annotation), f"`{default}`", key.description)
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |\n"


def _type(annotation: Any) -> str:
    plain = plain_type(annotation)
    origin, arguments = get_origin(plain), get_args(plain)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is tuple:
        return f"list of {_plural(_type(arguments[0]))}"
    if origin is dict:
        return "mapping"
    if len(arguments) > 1:  # a union
        return " or ".join(_type(each) for each in arguments)
    if isinstance(plain, type) and issubclass(plain, Section):
        return " ".join(("mapping of", ", ".join(f"`{each}`" for each in _names(plain))))
    names = {str: "text", int: "integer", float: "number", bool: "`true`, `false`", type(None): "`null`"}
    return names.get(plain, "mapping") + _limits(annotation)


def _plural(name: str) -> str:
    return {"text": "texts", "mapping": "mappings"}.get(name, name.replace("mapping of", "mappings of"))


def _names(section: type[Section]) -> Iterator[str]:
    return (each.encode_name for each in msgspec.structs.fields(section))


def _limits(annotation: Any) -> str:
    for each in constraints(annotation):
        if each.ge is not None or each.le is not None:
            most = f" ≤ {each.le}" if each.le and each.le != MAX_INT32 else ""
            return (f" ≥ {each.ge}" if each.ge is not None else "") + most
    return ""
