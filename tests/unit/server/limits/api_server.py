"""An API server over HTTPS that speaks list and watch: versions, chunks, 410, tokens, and cuts of connections."""

import json
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

NAMESPACE = "serving"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
REPLICA_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"


@dataclass
class Cluster:
    """The objects by collection and name, and the events that watches see."""

    token: str = "token-1"
    version: int = 100
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    oldest: int = 0  # versions before it are gone
    requests: list[str] = field(default_factory=list)
    gone_as_status: bool = False
    cut_next: str = ""  # what to break next: "line" of a watch, "chunk", "connection"
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, collection: str, name: str, *, owner: tuple[str, str, str] | None = None, **annotations: str) -> None:
        """Create or replace an object; `owner` is (apiVersion, kind, name)."""
        with self.changed:
            self.version += 1
            known = (collection, name) in self.objects
            metadata: dict[str, Any] = {"name": name, "resourceVersion": str(self.version), "annotations": annotations}
            if owner is not None:
                version, kind, above = owner
                metadata["ownerReferences"] = [
                    {"apiVersion": "v1", "kind": "Other", "name": "x"},
                    {"apiVersion": version, "kind": kind, "name": above, "controller": True},
                ]
            metadata["managedFields"] = [
                {"manager": "kubectl-annotate", "time": "2026", "fieldsV1": {"f:metadata": {"f:annotations": {}}}}
            ]
            document = {"metadata": metadata, "spec": {"replicas": 4}}
            self.objects[collection, name] = document
            self.events.append((self.version, "MODIFIED" if known else "ADDED", document))
            self.changed.notify_all()

    def delete(self, collection: str, name: str) -> None:
        """Delete an object."""
        with self.changed:
            self.version += 1
            self.events.append((self.version, "DELETED", self.objects.pop((collection, name))))
            self.changed.notify_all()

    def compact(self) -> None:
        """Forget all events so far, and end the watches."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.events.clear()
            self.changed.notify_all()

    def watches(self) -> int:
        """How many watches have begun."""
        return sum("watch=true" in request for request in self.requests)


class ApiServer:
    """The server; `stop` and `start` keep the port."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = folder
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        ca = trustme.CA()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(self._tls)
        ca.cert_pem.write_to_path(str(folder / "ca.crt"))
        (folder / "namespace").write_text(NAMESPACE)
        (folder / "token").write_text(cluster.token + "\n")

    def start(self) -> None:
        cluster = self.cluster

        class Handler(_Handler):
            place = cluster

        server = _Server(("127.0.0.1", self.port), Handler)
        server.socket = self._tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening and close all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.stopping = True
            with self.cluster.changed:
                self.cluster.changed.notify_all()
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    allow_reuse_address = True
    stopping = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that break connections are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    place: Cluster

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        cluster = self.place
        cluster.requests.append(self.path)
        self.close_connection = True
        if self.headers["Accept"] not in {"application/json", "*/*"}:  # as the real one
            self._json(406, {"kind": "Status", "message": "only the following media types are accepted: …"})
            return
        if self.headers["Authorization"] != f"Bearer {cluster.token}":
            self._json(401, {"kind": "Status", "message": "Unauthorized"})
            return
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if query.get("watch") == "true":
            self._watch(url.path, query)
            return
        with cluster.changed:
            if "fieldSelector" in query:
                name = query["fieldSelector"].removeprefix("metadata.name=")
                document = cluster.objects.get((url.path, name))
                version = {"resourceVersion": str(cluster.version)}
                self._json(200, {"metadata": version, "items": [document] if document else []})
                return
            collection, _, name = url.path.rpartition("/")
            document = cluster.objects.get((collection, name))
        self._json(200 if document else 404, document or {"kind": "Status", "message": f'"{name}" not found'})

    def _json(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, collection: str, query: dict[str, str]) -> None:
        cluster = self.place
        seen = int(query["resourceVersion"])
        gone = {"kind": "Status", "code": 410, "message": "too old resource version"}
        if seen < cluster.oldest and cluster.gone_as_status:
            self._json(410, gone)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = time.monotonic() + int(query["timeoutSeconds"])
        with suppress(OSError):
            while time.monotonic() < end and not self.server.stopping:  # type: ignore[attr-defined]
                with cluster.changed:
                    events = [event for event in cluster.events if event[0] > seen]
                    if not events and seen >= cluster.oldest:
                        cluster.changed.wait(0.5)
                        continue
                if seen < cluster.oldest:
                    self._chunk({"type": "ERROR", "object": gone})
                    break
                for version, kind, event in events:
                    seen = version
                    if self._cut():
                        return
                    self._chunk({"type": kind, "object": event})
                self._chunk({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}})
            else:
                if self.server.stopping:  # type: ignore[attr-defined]
                    return
            self.wfile.write(b"0\r\n\r\n")

    def _cut(self) -> bool:
        cut, self.place.cut_next = self.place.cut_next, ""
        if cut == "line":
            self.wfile.write(b'10\r\n{"type":"MODIFIE\r\n0\r\n\r\n')
        elif cut == "chunk":
            self.wfile.write(b'ff\r\n{"type":"MODIF')
        elif cut == "garbage":
            self.wfile.write(b"5\r\nabcd\n\r\n0\r\n\r\n")
        return bool(cut)

    def _chunk(self, event: dict[str, Any]) -> None:
        # In two chunks: events do not end where chunks do.
        data = json.dumps(event).encode() + b"\n"
        for part in (data[:7], data[7:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.flush()
