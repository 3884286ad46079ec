"""Limits from the annotations of the object that owns this pod: list, watch, and list again.

The object is found from the pod by its controllers: pod → ReplicaSet → Deployment. A thread follows it; the event loop
gets each change. While the API server cannot be reached, the last limits stay in force.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conch.base.errors import ConfigError
from conch.base.kubernetes.api import KubernetesApi, KubernetesError, PodIdentity
from conch.base.pacing import backoff_s
from conch.domain.limits import LimitKey, read_annotations
from conch.server.limits.manager import LimitManager

SOURCE = "kubernetes"
RESYNC_S = 300.0
_MIN_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 15.0  # while the API server refuses
# While the API server cannot be reached, that is 1 s: attempts cost it nothing, and limits return soon after it does.
_MAX_UNREACHABLE_FAILURES = 2
_GONE = 410
_GONE_WAIT_S = 0.1
_NOT_FOUND = 404
_MAX_OWNERS = 8
# Kinds that own pods, with the path of their group and the name of their collection.
_COLLECTIONS = {
    ("apps", "ReplicaSet"): ("apis/apps/v1", "replicasets"),
    ("apps", "Deployment"): ("apis/apps/v1", "deployments"),
    ("apps", "StatefulSet"): ("apis/apps/v1", "statefulsets"),
    ("apps", "DaemonSet"): ("apis/apps/v1", "daemonsets"),
    ("batch", "Job"): ("apis/batch/v1", "jobs"),
    ("", "ReplicationController"): ("api/v1", "replicationcontrollers"),
}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AnnotatedLimits:
    """Limits of the object, and what changed them."""

    limits: dict[LimitKey, int]
    who: str


@dataclass(frozen=True, slots=True)
class Unread:
    """Why the limits cannot be read."""

    error: str


class ObjectGone(Exception):
    """The object was deleted: another one may own the pod."""


def failures_after(error: KubernetesError, failures: int) -> int:
    """Return the number of consecutive failures as the back-off counts them, after one more."""
    return failures + 1 if error.status else min(failures + 1, _MAX_UNREACHABLE_FAILURES)


def delay_s(failures: int) -> float:
    """Return the seconds to wait after consecutive failures."""
    return backoff_s(failures, _MIN_BACKOFF_S, _MAX_BACKOFF_S)


class KubernetesSource:
    """Follows the annotations of the object that owns this pod."""

    def __init__(self, api: KubernetesApi, pod: PodIdentity, *, resync_s: float = RESYNC_S) -> None:
        self._api = api
        self._pod = pod
        self._resync_s = resync_s
        self._readings: asyncio.Queue[AnnotatedLimits | Unread] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = threading.Event()

    async def watch(self, manager: LimitManager) -> None:
        """Pass limits and failures to the manager until cancelled."""
        self._loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._follow, name="kubernetes-limits", daemon=True)
        thread.start()
        first = True
        try:
            while True:
                reading = await self._readings.get()
                if isinstance(reading, Unread):
                    manager.failed(SOURCE, reading.error)
                else:
                    await manager.replace(SOURCE, reading.limits, who=reading.who, first=first)
                    first = False
        finally:
            self._stopping.set()
            self._api.close()
            thread.join(1.0)

    # ── in the thread ──

    def _follow(self) -> None:
        failures = 0
        collection = name = ""
        while not self._stopping.is_set():
            try:
                if not name:
                    collection, name = self._owner()
                version = self._list(collection, name)
                failures = 0
                self._watch_from(collection, name, version)
            except ObjectGone:
                name = ""
                self._stopping.wait(delay_s(failures + 1))
            except KubernetesError as error:
                if error.status == _GONE:
                    self._stopping.wait(_GONE_WAIT_S)
                    continue  # the version is too old: list again
                if error.status == _NOT_FOUND:
                    name = ""
                self._publish(Unread(str(error)))
                failures = failures_after(error, failures)
                self._stopping.wait(delay_s(failures))
            except Exception as error:
                _log.exception("the watch of Kubernetes annotations failed unexpectedly")
                self._publish(Unread(f"{type(error).__name__}: {error}"))
                self._stopping.wait(_MAX_BACKOFF_S)

    def _owner(self) -> tuple[str, str]:
        """Return the collection and the name of the object at the top of the pod's controllers."""
        namespace = self._pod.namespace
        collection, name = f"/api/v1/namespaces/{namespace}/pods", self._pod.pod
        for _ in range(_MAX_OWNERS):
            controller = _controller(self._api.get(f"{collection}/{name}"))
            group = str(controller.get("apiVersion", "")).rpartition("/")[0]
            place = _COLLECTIONS.get((group, str(controller.get("kind"))))
            if place is None:
                break
            collection, name = f"/{place[0]}/namespaces/{namespace}/{place[1]}", str(controller.get("name"))
        _log.info("limits are read from the annotations of %s/%s", collection, name)
        return collection, name

    def _list(self, collection: str, name: str) -> str:
        """Read the object from a list; return the version from which to watch."""
        listed = self._api.get(collection, fieldSelector=f"metadata.name={name}")
        items = listed.get("items")
        if not isinstance(items, list) or not items or not isinstance(items[0], dict):
            self._publish(Unread(f"{collection}/{name} does not exist"))
            raise ObjectGone
        self._read(collection, items[0])
        return _version(listed)

    def _watch_from(self, collection: str, name: str, version: str) -> None:
        """Follow the object until it is time to list again. Raises KubernetesError, ObjectGone."""
        end = time.monotonic() + self._resync_s
        while time.monotonic() < end and not self._stopping.is_set():
            begun = time.monotonic()
            for event in self._api.watch(collection, fieldSelector=f"metadata.name={name}", resourceVersion=version):
                kind, resource = event.get("type"), event.get("object")
                if not isinstance(resource, dict):
                    raise KubernetesError(f"{collection}: a watch event has no object")
                if kind == "ERROR":
                    code = resource.get("code")
                    text = f"{collection}: {resource.get('message', 'the watch failed')}"
                    raise KubernetesError(text, code if isinstance(code, int) else 0)
                version = _version(resource) or version
                if kind == "DELETED":
                    raise ObjectGone
                if kind in ("ADDED", "MODIFIED"):
                    self._read(collection, resource)
                if time.monotonic() >= end:
                    break
            if time.monotonic() - begun < _MIN_BACKOFF_S:  # a server that ends watches at once
                self._stopping.wait(_MIN_BACKOFF_S)

    def _read(self, collection: str, resource: Mapping[str, Any]) -> None:
        try:
            limits = read_annotations(resource)
        except ConfigError as error:
            self._publish(Unread(error.message))
            return
        metadata = resource["metadata"] if isinstance(resource.get("metadata"), Mapping) else {}
        who = f"kubernetes:{collection}/{metadata.get('name')}"
        manager = _last_manager(metadata)
        self._publish(AnnotatedLimits(limits, f"{who} ({manager})" if manager else who))

    def _publish(self, reading: AnnotatedLimits | Unread) -> None:
        loop = self._loop
        assert loop is not None
        if not self._stopping.is_set():
            loop.call_soon_threadsafe(self._readings.put_nowait, reading)


def _controller(document: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = document.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, Mapping) and owner.get("controller") is True:
            return owner
    return {}


def _version(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    return str(metadata.get("resourceVersion", "")) if isinstance(metadata, Mapping) else ""


def _last_manager(metadata: Mapping[str, Any]) -> str:
    """Return the program that changed the annotations last, such as kubectl-annotate; "" if that is not recorded."""
    fields = metadata.get("managedFields")
    managers = [
        (str(entry.get("time", "")), str(entry.get("manager", "")))
        for entry in (fields if isinstance(fields, list) else ())
        if isinstance(entry, Mapping) and "f:annotations" in str(entry.get("fieldsV1", ""))
    ]
    return max(managers, default=("", ""))[1][:100]
