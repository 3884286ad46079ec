"""An API server of Kubernetes for tests, strict where clients trip over the real one.

It negotiates content types, answers with Status objects, tracks the managers of fields, defaults `replicas`, deletes
dependents, and has KEDA's webhook and controller as far as they concern the HorizontalPodAutoscalers of a workload:
github.com/kedacore/keda, apis/keda/v1alpha1/scaledobject_webhook.go (verifyHpas) and controllers/keda/hpa.go.
"""

import copy
import json
import threading
import uuid
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

_MEDIA_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf", "application/cbor")
# What clients accept from it: it writes JSON only.
_JSON = {"application/json", "application/*", "*/*"}
_KINDS = {
    "v1": {
        "secrets": "Secret",
        "services": "Service",
        "configmaps": "ConfigMap",
        "serviceaccounts": "ServiceAccount",
        "pods": "Pod",
    },
    "apps/v1": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "rbac.authorization.k8s.io/v1": {"roles": "Role", "rolebindings": "RoleBinding"},
    "keda.sh/v1alpha1": {"scaledobjects": "ScaledObject", "triggerauthentications": "TriggerAuthentication"},
    "monitoring.coreos.com/v1": {
        "podmonitors": "PodMonitor",
        "servicemonitors": "ServiceMonitor",
        "prometheusrules": "PrometheusRule",
    },
}
_HPAS = ("autoscaling/v2", "horizontalpodautoscalers")
_REASONS = {403: "Forbidden", 404: "NotFound", 406: "NotAcceptable", 409: "Conflict", 415: "UnsupportedMediaType"}
Object = dict[str, Any]
Manager = tuple[str, str]  # name, operation: Apply or Update
Path = tuple[str, ...]


class StatusError(Exception):
    """What the server answers as a Status object."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason or _REASONS[code]


@dataclass
class ApiServer:
    """The server and its objects. A context manager; `namespace` is the only one.

    `metrics` has answers of the APIs of metrics: the path below /apis, and the labels that must be asked for.
    """

    namespace: str = "default"
    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)  # version, resource, name
    managers: dict[tuple[str, str, str], dict[Manager, set[Path]]] = field(default_factory=dict)
    metrics: dict[str, tuple[dict[str, str], list[Object]]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)  # versions of APIs that the cluster does not have
    forbidden: set[str] = field(default_factory=set)  # resources
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Accept
    changes: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"api": self})

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def kubeconfig(self) -> str:
        """The text of a kubeconfig for this server."""
        cluster = {"name": "test", "cluster": {"server": self.url}}
        context = {"name": "test", "context": {"cluster": "test", "user": "test", "namespace": self.namespace}}
        users = [{"name": "test", "user": {}}]
        document = {"apiVersion": "v1", "kind": "Config", "current-context": "test"}
        return json.dumps({**document, "clusters": [cluster], "contexts": [context], "users": users})

    def add(self, document: Mapping[str, Any]) -> Object:
        """Create an object, as with `kubectl create`."""
        version = str(document["apiVersion"])
        resource = next(name for name, kind in _KINDS[version].items() if kind == document["kind"])
        return self.create(version, resource, copy.deepcopy(dict(document)), "kubectl-create")

    def names(self, version: str, resource: str) -> list[str]:
        """The names of the objects of a resource."""
        return sorted(key[2] for key in self.objects if key[:2] == (version, resource))

    def replicas(self, name: str) -> int:
        """The desired replicas of a Deployment."""
        number: int = self.objects["apps/v1", "deployments", name]["spec"]["replicas"]
        return number

    def scale(self, name: str, replicas: int) -> None:
        """Change the replicas of a Deployment, as the controller of HorizontalPodAutoscalers does."""
        key = ("apps/v1", "deployments", name)
        changed = copy.deepcopy(self.objects[key])
        changed["spec"]["replicas"] = replicas
        self.update(key, changed, "kube-controller-manager")

    # ── objects ──

    def create(self, version: str, resource: str, document: Object, manager: str, operation: str = "Update") -> Object:
        with self.lock:
            name = document["metadata"]["name"]
            key = (version, resource, name)
            if key in self.objects:
                raise StatusError(409, f'{resource} "{name}" already exists', "AlreadyExists")
            metadata = document["metadata"]
            metadata |= {"namespace": self.namespace, "uid": str(uuid.uuid4())}
            metadata.setdefault("creationTimestamp", "2026-11-23T12:00:00Z")
            self._admit(document)
            self.managers[key] = {(manager, operation): set(dict(_leaves(_managed(document))))}
            return self._store(key, document)

    def update(self, key: tuple[str, str, str], document: Object, manager: str) -> Object:
        with self.lock:
            before = self.objects[key]
            changed = _differences(_managed(before), _managed(document))
            self._admit(document)
            managers = self.managers[key]
            for other in managers.values():
                other -= changed
            managers.setdefault((manager, "Update"), set()).update(changed & set(dict(_leaves(_managed(document)))))
            return self._store(key, document)

    def apply(self, key: tuple[str, str, str], document: Object, manager: str, *, force: bool) -> Object:
        """Server-side apply: refuse what others manage, remove what the manager applied before and no longer does."""
        with self.lock:
            if key not in self.objects:
                return self.create(key[0], key[1], document, manager, "Apply")
            live = copy.deepcopy(self.objects[key])
            wanted = dict(_leaves(_managed(document)))
            managers = self.managers[key]
            applier = (manager, "Apply")
            conflicts = {
                other: [path for path in wanted if path in owned and _at(live, path) != wanted[path]]
                for other, owned in managers.items()
                if other != applier
            }
            if not force and any(conflicts.values()):
                raise StatusError(409, _conflict_text(key[0], conflicts))
            for path in managers.get(applier, set()) - set(wanted):
                if not any(path in owned for other, owned in managers.items() if other != applier):
                    _remove(live, path)
            for path, value in wanted.items():
                _set(live, path, value)
            for other, paths in conflicts.items():
                managers[other] -= set(paths)
            self._admit(live)
            managers[applier] = set(wanted)
            return self._store(key, live)

    def delete(self, key: tuple[str, str, str]) -> Object:
        """Delete an object and, as the garbage collector does, what it owns. KEDA creates its autoscaler again."""
        with self.lock:
            if key not in self.objects:
                raise StatusError(404, f'{key[1]} "{key[2]}" not found')
            gone = self.objects.pop(key)
            self.managers.pop(key, None)
            for other in [object for object, owned in self.objects.items() if _owner(owned) == gone["metadata"]["uid"]]:
                self.delete(other)
            self._reconcile()
            return gone

    def _store(self, key: tuple[str, str, str], document: Object) -> Object:
        if key[1] in {"deployments", "statefulsets"}:
            document["spec"].setdefault("replicas", 1)
        self.changes += 1
        document["metadata"]["resourceVersion"] = str(self.changes)
        document["metadata"]["managedFields"] = [
            {"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "apiVersion": key[0]}
            | {"fieldsV1": _fields(paths)}
            for (manager, operation), paths in self.managers[key].items()
        ]
        self.objects[key] = document
        self._reconcile()
        return document

    # ── KEDA ──

    def _admit(self, document: Object) -> None:
        """KEDA's webhook: refuse a ScaledObject whose target has another's autoscaler."""
        if document["kind"] != "ScaledObject":
            return
        metadata, target = document["metadata"], document["spec"]["scaleTargetRef"]["name"]
        transfer = (metadata.get("annotations") or {}).get("scaledobject.keda.sh/transfer-hpa-ownership") == "true"
        for (version, resource, name), hpa in self.objects.items():
            annotations = hpa["metadata"].get("annotations") or {}
            if (version, resource) != _HPAS or annotations.get("validations.keda.sh/hpa-ownership") == "false":
                continue
            owned = any(
                ownerreference["name"] == metadata["name"]
                for ownerreference in hpa["metadata"].get("ownerReferences", ())
            )
            if (
                hpa["spec"]["scaleTargetRef"]["name"] == target
                and not owned
                and not (transfer and name == _hpa(document))
            ):
                webhook = 'admission webhook "vscaledobject.kb.io" denied the request: '
                text = f"the workload '{target}' of type 'apps/v1.Deployment' is already managed by the hpa '{name}'"
                raise StatusError(403, webhook + text)

    def _reconcile(self) -> None:
        """KEDA's controller: each ScaledObject has its autoscaler."""
        for (version, _, name), scaled in list(self.objects.items()):
            key = (*_HPAS, _hpa(scaled)) if version == "keda.sh/v1alpha1" and scaled["kind"] == "ScaledObject" else None
            if key is None:
                continue
            owner = {"apiVersion": version, "kind": "ScaledObject", "name": name, "uid": scaled["metadata"]["uid"]}
            metadata = {
                "name": key[2],
                "labels": scaled["metadata"]["labels"],
                "annotations": copy.deepcopy(scaled["metadata"].get("annotations", {})),
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            }
            hpa = {
                "apiVersion": _HPAS[0],
                "kind": "HorizontalPodAutoscaler",
                "metadata": metadata,
                "spec": _spec(scaled),
            }
            for other, object in list(self.objects.items()):  # renamed
                if other[:2] == _HPAS and other != key and _owner(object) == owner["uid"]:
                    del self.objects[other]
            if key not in self.objects:
                self.create(*_HPAS, hpa, "keda")
            elif _owner(self.objects[key]) != owner["uid"]:  # transferred
                metadata["uid"] = self.objects[key]["metadata"]["uid"]
                self.update(key, {**self.objects[key], **hpa}, "keda")


def _hpa(scaled: Object) -> str:
    config = scaled["spec"].get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    return str(config.get("name") or f"keda-hpa-{scaled['metadata']['name']}")


def _spec(scaled: Object) -> Object:
    name = scaled["metadata"]["name"]
    spec = scaled["spec"]
    metrics = [
        {
            "type": "External",
            "external": {
                "metric": {
                    "name": f"s{index}-{trigger['type']}",
                    "selector": {"matchLabels": {"scaledobject.keda.sh/name": name}},
                },
                "target": {"type": "AverageValue", "averageValue": trigger["metadata"].get("threshold", "1")},
            },
        }
        for index, trigger in enumerate(spec["triggers"])
    ]
    target = {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]}
    least = max(spec.get("minReplicaCount", 0), 1)
    return {"scaleTargetRef": target, "minReplicas": least, "maxReplicas": spec["maxReplicaCount"], "metrics": metrics}


# ── fields ──


def _owner(document: Object) -> str | None:
    return next(
        (str(ownerreference["uid"]) for ownerreference in document["metadata"].get("ownerReferences", ())), None
    )


def _managed(document: Object) -> Object:
    """What managers of fields are recorded for: neither the identity nor what the server sets."""
    metadata = {key: document["metadata"][key] for key in ("labels", "annotations") if document["metadata"].get(key)}
    return {**{key: value for key, value in document.items() if key in {"spec", "data"}}, "metadata": metadata}


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and (value or not path):
        for key, part in value.items():
            yield from _leaves(part, (*path, str(key)))
    else:
        yield path, value


def _differences(old: Object, new: Object) -> set[Path]:
    before, after = dict(_leaves(old)), dict(_leaves(new))
    return {path for path in before.keys() | after.keys() if before.get(path, _leaves) != after.get(path, _leaves)}


def _at(document: Any, path: Path) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _set(document: Object, path: Path, value: Any) -> None:
    for key in path[:-1]:
        document = document.setdefault(key, {})
    document[path[-1]] = value


def _remove(document: Object, path: Path) -> None:
    parent = _at(document, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)


def _fields(paths: set[Path]) -> Object:
    fields: Object = {}
    for path in sorted(paths):
        place = fields
        for key in path:
            place = place.setdefault(f"f:{key}", {})
    return fields


def _conflict_text(version: str, conflicts: dict[Manager, list[Path]]) -> str:
    """The message of the real server."""
    count = sum(map(len, conflicts.values()))
    parts = [
        f"conflict{'s' if count > 1 else ''} with {_described(version, *manager)}: "
        + ", ".join(f".{'.'.join(path)}" for path in paths)
        for manager, paths in conflicts.items()
        if paths
    ]
    return f"Apply failed with {count} conflict{'s' if count > 1 else ''}: " + ", ".join(parts)


def _described(version: str, manager: str, operation: str) -> str:
    subresource = ' with subresource "scale"' if manager == "kube-controller-manager" else ""
    using = f" using {version} at 2026-11-23T12:00:00Z" if operation == "Update" else ""
    return f'"{manager}"{subresource}{using}'


def _merged(before: Any, patch: Any) -> Any:
    """A merge patch; lists of named parts are merged by name, as a strategic one does."""
    if isinstance(patch, list) and isinstance(before, list) and all(isinstance(x, dict) and "name" in x for x in patch):
        parts = {part["name"]: part for part in before}
        return list({**parts, **{part["name"]: _merged(parts.get(part["name"]), part) for part in patch}}.values())
    if not isinstance(patch, dict):
        return patch
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        elif not key.startswith("$"):
            merged[key] = _merged(merged.get(key), value)
    return merged


# ── HTTP ──

_PROTOBUF = "application/vnd.kubernetes.protobuf"


def _read(body: bytes, content: str) -> Any:
    """Return the object of a body. Helm writes its releases, which are Secrets, as protobuf."""
    if content != _PROTOBUF:
        return yaml.safe_load(body)
    assert body.startswith(b"k8s\0")
    secret = _protobuf(_protobuf(body[4:])[2][0])
    metadata = _protobuf(secret[1][0])
    labels = [_protobuf(entry) for entry in metadata.get(11, [])]
    data = [_protobuf(entry) for entry in secret.get(2, [])]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": secret[3][0].decode(),
        "metadata": {
            "name": metadata[1][0].decode(),
            "labels": {entry[1][0].decode(): entry[2][0].decode() for entry in labels},
        },
        "data": {entry[1][0].decode(): b64encode(entry[2][0]).decode() for entry in data},
    }


def _protobuf(message: bytes) -> dict[int, list[bytes]]:
    """Return the fields of a message that have a length, by number."""
    fields: dict[int, list[bytes]] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        tag = varint()
        if tag & 7 == 0:
            varint()
            continue
        assert tag & 7 == 2, tag
        length = varint()
        fields.setdefault(tag >> 3, []).append(message[position : position + length])
        position += length
    return fields


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ApiServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_PATCH(self) -> None:
        self._serve("PATCH")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        accepted = self.headers.get("Accept") or "*/*"
        self.api.requests.append((method, self.path, accepted))
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        try:
            if not {part.partition(";")[0].strip() for part in accepted.split(",")} & _JSON:
                raise StatusError(406, f"only the following media types are accepted: {', '.join(_MEDIA_TYPES)}")
            with self.api.lock:
                code, document = self._answer(method, unquote(url.path).strip("/"), query, body)
        except StatusError as error:
            code = error.code
            document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
            document |= {"message": str(error), "reason": error.reason, "code": error.code}
        data = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, Object]:
        if discovered := self._discovery(path):
            return 200, discovered
        parts = path.split("/")
        version = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        below = path.removeprefix("apis/")
        if below in self.api.metrics:
            return 200, self._metric(below, query)
        known = {} if version in self.api.missing else _KINDS.get(version, {})
        if rest[:1] != ["namespaces"] or len(rest) < 3 or rest[2] not in known:
            raise StatusError(404, "the server could not find the requested resource")
        if rest[2] in self.api.forbidden:
            group = version.rpartition("/")[0]
            text = f'{rest[2]}{"." * bool(group)}{group} is forbidden: User "jane" cannot list resource "{rest[2]}"'
            raise StatusError(403, f'{text} in API group "{group}" in the namespace "{rest[1]}"')
        own = rest[1] == self.api.namespace
        if len(rest) == 3 and method == "GET":
            return 200, self._list(version, rest[2], known[rest[2]], query if own else None)
        manager = query.get("fieldManager") or self.headers.get("User-Agent", "").partition("/")[0]
        if len(rest) == 3:
            document = _read(body, self.headers.get("Content-Type", ""))
            return 201, self.api.create(version, rest[2], document, manager)
        return self._object(method, (version, rest[2], rest[3]), query, body, manager)

    def _object(
        self, method: str, key: tuple[str, str, str], query: dict[str, str], body: bytes, manager: str
    ) -> tuple[int, Object]:
        api, content = self.api, self.headers.get("Content-Type", "").partition(";")[0]
        if method == "PATCH" and content == "application/apply-patch+yaml":
            code = 200 if key in api.objects else 201
            return code, api.apply(key, yaml.safe_load(body), manager, force=query.get("force") == "true")
        if method == "DELETE":
            return 200, api.delete(key)
        live = api.objects.get(key)
        if live is None:
            raise StatusError(404, f'{key[1]} "{key[2]}" not found')
        if method == "GET":
            return 200, live
        document = _read(body, content)
        if method == "PATCH":
            if content not in {"application/merge-patch+json", "application/strategic-merge-patch+json"}:
                raise StatusError(415, f"the body of the request was in an unknown format - {content}")
            document = _merged(copy.deepcopy(live), document)
        return 200, api.update(key, document, manager)

    def _list(self, version: str, resource: str, kind: str, query: dict[str, str] | None) -> Object:
        """A list. Its items have neither kind nor version, as those of the real server's typed resources."""
        items = []
        for (of_version, of_resource, name), object in self.api.objects.items():
            wanted = (of_version, of_resource) == (version, resource) and query is not None
            if wanted and _selected(object, query or {}, name):
                items.append({key: value for key, value in object.items() if key not in {"kind", "apiVersion"}})
        metadata = {"resourceVersion": str(self.api.changes)}
        return {"kind": f"{kind}List", "apiVersion": version, "metadata": metadata, "items": items}

    def _metric(self, path: str, query: dict[str, str]) -> Object:
        """Values of an API of metrics; those of KEDA need the label selector, as its adapter does."""
        wanted, items = self.api.metrics[path]
        for name, value in wanted.items():
            if query.get(name) != value:
                if path.startswith("external.metrics.k8s.io"):
                    raise StatusError(404, f"scaledObject name is not specified ({name})")
                items = []
        kind = "ExternalMetricValueList" if path.startswith("external") else "MetricValueList"
        return {"kind": kind, "apiVersion": "/".join(path.split("/")[:2]), "metadata": {}, "items": items}

    def _discovery(self, path: str) -> Object | None:
        versions = [version for version in _KINDS if version not in self.api.missing]
        if path == "version":
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"}
        if path == "api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "apis":
            groups = [
                {"name": version.partition("/")[0], "versions": [_group_version(version)]}
                | {"preferredVersion": _group_version(version)}
                for version in versions
                if "/" in version
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        version = path.partition("/")[2]
        if path.startswith("api") and version in versions:
            resources = [
                {"name": name, "singularName": kind.lower(), "kind": kind, "namespaced": True}
                | {"verbs": ["create", "delete", "get", "list", "patch", "update"]}
                | {"shortNames": ["hpa"] if name == _HPAS[1] else []}
                for name, kind in _KINDS[version].items()
            ]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
        if path == f"api/v1/namespaces/{self.api.namespace}":
            return {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": self.api.namespace}}
        return None


def _group_version(version: str) -> Object:
    return {"groupVersion": version, "version": version.partition("/")[2]}


def _selected(document: Object, query: dict[str, str], name: str) -> bool:
    labels = document["metadata"].get("labels") or {}
    for requirement in filter(None, query.get("labelSelector", "").split(",")):
        key, _, value = requirement.replace("==", "=").partition("=")
        if labels.get(key) != value:
            return False
    wanted = query.get("fieldSelector", "").partition("metadata.name=")[2]
    return not wanted or wanted == name
