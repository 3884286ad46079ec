"""An AWS for Terraform: moto's server, and two parts of EKS that it lacks: add-ons and pod identities, in memory."""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias
from uuid import uuid4

from moto.backends import get_service_from_url  # noqa: F401  the import registers moto's services
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_Environment: TypeAlias = dict[str, Any]
_Start: TypeAlias = Callable[..., Any]
_PATH = re.compile(r"/clusters/([\w-]+)/(addons|pod-identity-associations)(?:/([\w-]+))?$")
_ONE = {"addons": "addon", "pod-identity-associations": "association"}


class EksParts:
    """A WSGI application: the parts of EKS, everything else goes to moto."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, dict[str, Any]]] = {"addons": {}, "pod-identity-associations": {}}
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._refuses = False
        self._in_flight = 0
        self._change = threading.Condition()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Answer what is in flight, and each later request with 503: then no client misses the answer to a change."""
        with self._change:
            self._refuses = True
            assert self._change.wait_for(lambda: not self._in_flight, timeout=60)
        try:
            yield
        finally:
            self._refuses = False

    def __call__(self, environment: _Environment, start: _Start) -> Iterable[bytes]:
        with self._change:
            if self._refuses:
                start("503 x", [("Content-Length", "0")])
                return [b""]
            self._in_flight += 1
        try:
            return list(self._route(environment, start))
        finally:
            with self._change:
                self._in_flight -= 1
                self._change.notify_all()

    def _route(self, environment: _Environment, start: _Start) -> Iterable[bytes]:
        match = _PATH.fullmatch(environment["PATH_INFO"])
        if match is None:
            answer: Iterable[bytes] = self._moto(environment, start)
            return answer
        body = environment["wsgi.input"].read(int(environment.get("CONTENT_LENGTH") or 0))
        status, document = self._answer(environment["REQUEST_METHOD"], *match.groups(), json.loads(body or b"{}"))
        headers = [("Content-Type", "application/json")]
        if status != 200:
            headers.append(("x-amzn-ErrorType", "ResourceNotFoundException"))
        start(f"{status} x", headers)
        return [json.dumps(document).encode()]

    def _answer(self, method: str, cluster: str, kind: str, name: str | None, given: Any) -> tuple[int, dict[str, Any]]:
        kept = self.kept[kind]
        if name is None and method == "POST":
            made = self._addon(cluster, given) if kind == "addons" else self._association(cluster, given)
            return 200, {_ONE[kind]: made}
        if name is None:
            return 200, {"associations" if kind != "addons" else "addons": list(kept)}
        if name not in kept:
            return 404, {"message": f"No {_ONE[kind]} found for {name}"}
        part = kept.pop(name) if method == "DELETE" else kept[name]
        if method == "DELETE" and kind == "addons":
            for arn in part["podIdentityAssociations"]:
                self.kept["pod-identity-associations"].pop(arn.rpartition("/")[2], None)
        return 200, {_ONE[kind]: part}

    def _addon(self, cluster: str, given: dict[str, Any]) -> dict[str, Any]:
        own = {"namespace": "kube-system"}
        made = [self._association(cluster, {**own, **wanted}) for wanted in given.pop("podIdentityAssociations", [])]
        name = given["addonName"]
        addon = {
            **given,
            "addonArn": f"arn:aws:eks:us-west-2:123456789012:addon/{cluster}/{name}/1",
            "addonVersion": given.get("addonVersion", "v1.0.0-eksbuild.1"),
            "clusterName": cluster,
            "podIdentityAssociations": [association["associationArn"] for association in made],
            "status": "ACTIVE",
        }
        self.kept["addons"][name] = addon
        return addon

    def _association(self, cluster: str, given: dict[str, Any]) -> dict[str, Any]:
        name = f"a-{uuid4().hex[:17]}"
        arn = f"arn:aws:eks:us-west-2:123456789012:podidentityassociation/{cluster}/{name}"
        made = {**given, "associationId": name, "associationArn": arn, "clusterName": cluster}
        self.kept["pod-identity-associations"][name] = made
        return made


class _Silent(WSGIRequestHandler):
    def log_request(self, *_: Any) -> None:
        pass


@contextmanager
def running_aws() -> Iterator[tuple[str, EksParts]]:
    """Run it on a free port; the value is its URL and the kept parts."""
    application = EksParts()
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Silent)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", application
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
