"""As much of the Hugging Face Hub as its own client needs to fetch a model: its lists of files, and the files."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


class Hub:
    """Models by their names, each with its files; `gated` are refused as those are whose terms were not accepted."""

    def __init__(
        self,
        models: Mapping[str, Mapping[str, bytes]],
        gated: frozenset[str] = frozenset(),
        *,
        announced: Mapping[str, int] | None = None,
        commit: str = COMMIT,
        redirect: str = "",
        stops_at: int = 0,
        trickles: bool = False,
        endless: bool = False,
    ) -> None:
        self.models = models
        self.gated = gated
        self.announced = announced or {}  # sizes of files, where they differ from the contents
        self.commit = commit
        self.redirect = redirect  # base URL that files are redirected to
        self.stops_at = stops_at  # bytes of a file that are sent until `goes_on` is set
        self.trickles = trickles  # until `goes_on` is set, instead of stopping
        self.endless = endless  # the list of files
        self.goes_on = Event()
        self.ranges: list[str] = []  # that were asked for
        self.fetched: list[str] = []
        self.authorizations: list[str] = []  # of requests for files
        hub = self

        class Handler(_Handler):
            def __init__(self, *arguments: Any) -> None:
                self.hub = hub
                super().__init__(*arguments)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *arguments: Any) -> None:
        """Keep the output of the tests clean."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        is_list = path.startswith("api/models/")
        owner, name, *rest = path.removeprefix("api/models/").split("/")
        model = f"{owner}/{name}"
        if model in self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif model not in self.hub.models:
            self._refuse(401, "RepoNotFound")
        elif len(rest) > 1 and rest[1] not in ("main", "v1", COMMIT):
            self._refuse(404, "RevisionNotFound")
        elif is_list:
            self._list(model, tree=rest[:1] == ["tree"])
        else:
            self._file(model, "/".join(rest[2:]))

    def _list(self, model: str, *, tree: bool) -> None:
        if self.hub.endless:
            self.send_response(200)
            self.end_headers()
            with suppress(ConnectionError):
                while True:
                    self.wfile.write(bytes(1 << 20))
        files = self.hub.models[model]
        entries = [
            {"type": "file", "path": name, "oid": _etag(content), "size": self.hub.announced.get(name, len(content))}
            for name, content in files.items()
        ]
        siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in entries]
        about = {"id": model, "modelId": model, "sha": self.hub.commit, "siblings": siblings}
        self._send(json.dumps(entries if tree else about).encode(), "application/json", {})

    def _file(self, model: str, name: str) -> None:
        content = self.hub.models[model].get(name)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        self.hub.authorizations.append(self.headers.get("Authorization", ""))
        headers = {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT}
        if self.hub.redirect:
            self.send_response(302)
            size = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": headers["ETag"], "Content-Length": "0"}
            for header, value in {**headers, **size, "Location": self.hub.redirect + self.path}.items():
                self.send_header(header, value)
            self.end_headers()
            return
        if self.command == "GET":
            self.hub.fetched.append(name)
        if name in self.hub.announced and self.command == "HEAD":
            headers["X-Linked-Size"] = str(self.hub.announced[name])
        self._send(content, "application/octet-stream", headers)

    def _send(self, content: bytes, kind: str, headers: Mapping[str, str]) -> None:
        if (asked := self.headers.get("Range")) and self.command == "GET":
            self.hub.ranges.append(asked)
            begin = int(asked.removeprefix("bytes=").partition("-")[0])
            headers = {**headers, "Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"}
            content = content[begin:]
        self.send_response(206 if "Content-Range" in headers else 200)
        for header, value in {**headers, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command == "GET":
            with suppress(ConnectionError):
                stop = self.hub.stops_at if kind == "application/octet-stream" else 0
                self.wfile.write(content[: stop or None])
                if stop:
                    while not self.hub.goes_on.wait(0.02 if self.hub.trickles else None):
                        self.wfile.write(content[stop : stop + 1])
                        stop += 1
                    self.wfile.write(content[stop:])

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _etag(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
