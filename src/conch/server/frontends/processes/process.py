"""One frontend process: it accepts clients on all ports for them, decodes and encodes, and asks the core for the rest.

What answers here (`_native`) is what a server without frontend processes runs, too: the same endpoints on the same
`Inference`, over models that send their requests to the core. The core's endpoints answer everything else.
"""

import asyncio
import faulthandler
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import uvloop

from conch.base.errors import ConchError
from conch.domain.request import Timeline
from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.connections.body_budget import BodyBudget
from conch.protocols.http.message import HttpRequest
from conch.protocols.http.metrics_page import MetricsPage
from conch.protocols.http.reply import HttpReply
from conch.protocols.openai.fields import ReadCall
from conch.protocols.openai.requests import CompletionCall
from conch.protocols.regions import NO_REGIONS
from conch.server.backends.child.conch_child.ipc import heap, prctl
from conch.server.backends.child.conch_child.python.fork_server import next_child
from conch.server.core.inference import Inference
from conch.server.core.loading.model_manager import ModelManager
from conch.server.frontends.endpoints import HTTP_PORT, INFER_PATH, OPENAI_PORT, ApiEndpoint, Handlers
from conch.server.frontends.grpc.server import GrpcFrontend
from conch.server.frontends.openai.generations import CHAT, COMPLETION, Dialect, Generations
from conch.server.frontends.openai.ignored_fields import IgnoredFields
from conch.server.frontends.openai.messages import MESSAGES
from conch.server.frontends.parts import Parts
from conch.server.frontends.processes.forwarding import Forwarding
from conch.server.frontends.processes.link import (
    ANSWER,
    CALLED,
    CATALOG,
    COMMAND,
    DELTAS,
    EXPLAINED,
    FORGOT,
    LOG,
    OPTIONS,
    RAW,
    RAW_END,
    REPORT,
    STARTED,
    STATE,
    STOPPED,
    FrontendLink,
    Message,
    NamedRegions,
)
from conch.server.frontends.processes.mirror import CatalogMirror, RemoteObserver
from conch.server.frontends.processes.remote_models import Calls, MirroredCatalog, RemoteExchanges
from conch.server.frontends.processes.values import of_plain
from conch.server.frontends.services import Service, http_listener, http_tls
from conch.server.frontends.v2_grpc.service import InferenceService
from conch.server.limits.limiter import Limiter
from conch.server.observability.event_log import EventRecorder
from conch.server.options.server_options import ServerOptions

# The link, and the arenas of tensors to and from the core.
_SHARED = 3
_MAX_LOGGED = 65_536
_DIALECTS: dict[str, Dialect[Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/messages": MESSAGES,
}


def main() -> None:
    """Fork a frontend process at each request of the server, and run it in the fork until the server ends it."""
    prctl.die_with_parent()
    heap.keep_freed_memory()
    faulthandler.enable()
    heap.collect_less_often()  # imported objects stay, in memory that the processes share
    _, _, (link, outgoing, incoming) = next_child(socket.socket(fileno=int(sys.argv[1])), _SHARED)
    uvloop.run(_run(link, outgoing, incoming))
    os._exit(0)  # threads of workers may be reading


async def _run(descriptor: int, outgoing: int, incoming: int) -> None:
    frontend = FrontendProcess(outgoing, incoming)
    os.close(outgoing)
    os.close(incoming)
    connection = socket.socket(fileno=descriptor)
    await asyncio.get_running_loop().create_unix_connection(lambda: frontend.link.protocol, sock=connection)
    await frontend.ended.wait()


class FrontendProcess:
    """The parts of the process, from the first message of the core to the end of the link."""

    def __init__(self, outgoing: int, incoming: int) -> None:
        self.link = FrontendLink(self._handle, self._lost, outgoing, incoming)
        self.ended = asyncio.Event()
        self._calls = Calls(self.link)
        self._forwarding = Forwarding(self._calls)
        self._ready = False
        self._catalog = MirroredCatalog(self._calls)
        self._inference = Inference(self._catalog, strict_readiness=False, started=lambda: self._ready)
        self._mirror = CatalogMirror(self._catalog, self._calls)
        self._observer = RemoteObserver(self.link)
        self._services: dict[str, Service] = {}
        self._budget = BodyBudget(0)
        self._tasks: set[asyncio.Task[None]] = set()

    def _handle(self, message: Message) -> None:
        kind = message[0]
        if kind == ANSWER:
            self._calls.answered(message)
        elif kind == DELTAS:
            self._calls.generated(message)
        elif kind in (RAW, RAW_END, CALLED, EXPLAINED):
            self._forwarding.handle(message)
        elif kind == CATALOG:
            self._mirror.apply(message[1])
        elif kind == STATE:
            self._ready, self._observer.on = message[1:]
        elif kind == COMMAND:
            self._command(*message[1:])
        elif kind == OPTIONS:
            self._spawn(self._start(*message[1:]))

    def _lost(self) -> None:
        """End: the server has ended, or has closed the link."""
        self._calls.fail()
        self._forwarding.fail()
        self.ended.set()

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, options_: Any, listen: bool, memory_bytes: int, first_call: int) -> None:
        options: ServerOptions = of_plain(options_)
        if not options.process_debugging:
            prctl.set_dumpable(False)
        _configure_log(self.link, options)
        self._budget = BodyBudget(memory_bytes)
        recorder = EventRecorder(options.event_log_bytes, first_call)
        recorder.exchanges = RemoteExchanges(self.link)
        try:
            keys = ApiKeys(options.api_key_file, options.openai_api_key, options.openai_api_key_file)
            if keys:
                keys.load()
                self._spawn(keys.watch())
            if keys or options.limits_tenant_header:
                self._inference.limiter = Limiter()  # without limits, which are the core's: it names the tenant
            parts = Parts(
                options,
                self._inference,
                cast("ModelManager", None),  # endpoints that need one are the core's
                observer=self._observer,
                recorder=recorder,
                explain=self._forwarding.explain if recorder.on else None,
                budget=self._budget,
                keys=keys,
                ignored_fields=_StrictFields(options.openai_strict),
                named_regions=NamedRegions() if options.allow_client_shm else NO_REGIONS,
            )
            for service in self._listeners(parts):
                await service.listener.start(listen=listen)
                self._services[service.flags] = service
        except (ConchError, OSError) as error:
            self.link.send((STARTED, str(error) or repr(error)))
            return
        self.link.send((STARTED, ""))

    def _listeners(self, parts: Parts) -> Iterator[Service]:
        options = parts.options
        http = HttpFrontend(parts, self._catalog, self._forwarding)
        address = options.http_address
        ports = [(HTTP_PORT, address, options.http_port)] if options.allow_http else []
        if options.openai_port >= 0:
            ports.append((OPENAI_PORT, options.openai_address or address, options.openai_port))
        for flags, host, port in ports:
            tls = http_tls(options)
            listener = http_listener(parts, http.router(flags), host, port, reuse_port=True, tls=tls)
            yield Service(flags, "", host, port, listener)
        if options.allow_grpc:
            methods = {
                path: method._replace(answer=partial(self._forwarding.call, path))
                for path, method in InferenceService(parts).methods().items()
            }
            yield Service("grpc", "", options.grpc_address, options.grpc_port, GrpcFrontend(parts, methods))

    def _command(self, name: str, flags: str = "", timeout_s: float = 0.0) -> None:
        if name == "report":
            self._report()
            return
        if name == "limits":
            self._calls.refusals.clear()
            self.link.send((FORGOT,))
            return
        service = self._services.get(flags)
        if service is None:
            return
        if name == "listen":
            self._spawn(service.listener.listen())
        elif name == "retire":
            service.listener.retire_connections()
        elif name == "stop accepting":
            service.listener.stop_accepting()
        elif name == "stop":
            self._spawn(self._stop(service, timeout_s))

    async def _stop(self, service: Service, timeout_s: float) -> None:
        await service.listener.stop(timeout_s)
        self._report()
        self.link.send((STOPPED, service.flags))

    def _report(self) -> None:
        """Send the counters of this process."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        budget = self._budget
        listeners = {}
        for flags, service in self._services.items():
            traffic = service.listener.traffic
            counts = (traffic.received_bytes, traffic.sent_bytes, dict(traffic.refused))
            listeners[flags] = (service.listener.connections, *counts)
        self.link.send(
            (
                REPORT,
                listeners,
                (budget.used_bytes, budget.refused, budget.evicted),
                used.ru_utime + used.ru_stime,
            )
        )


def _no_metrics() -> Iterator[bytes]:
    """Yield nothing: the core answers scrapes."""
    return iter(())


class HttpFrontend(Handlers):
    """The endpoints of the HTTP and OpenAI ports: those of inference answer here, others are forwarded."""

    def __init__(self, parts: Parts, catalog: MirroredCatalog, forwarding: Forwarding) -> None:
        super().__init__(parts, MetricsPage(_no_metrics) if parts.options.allow_metrics else None)
        self._catalog = catalog
        self._forwarding = forwarding

    def answer(self, endpoint: ApiEndpoint) -> Callable[..., None] | None:
        if super().answer(endpoint) is None:
            return None
        # A path of both ports has one handler; without the HTTP port only the other is served.
        port = endpoint.ports[0] if self.parts.options.allow_http else OPENAI_PORT
        forward = partial(self._forwarding.forward, port)
        if endpoint.path == INFER_PATH:
            return partial(self._infer_known, forward)
        dialect = _DIALECTS.get(endpoint.path)
        return forward if dialect is None else _NativeGenerations(self, forward).endpoint(dialect)

    def _infer_known(
        self,
        forward: Callable[[HttpRequest, HttpReply], None],
        request: HttpRequest,
        reply: HttpReply,
        name: str,
        version: int | None,
    ) -> None:
        """Infer with a model that the core has published.

        The core answers for others, and requests with mistakes about shared memory, which it has.
        """
        if not self._catalog.knows(name, version):
            forward(request, reply)
            return
        try:
            self.infer(request, reply, name, version)
        except ConchError:
            if self.parts.options.allow_client_shm and reply.open:
                forward(request, reply)
            else:
                raise


class _NativeGenerations(Generations):
    """Begins calls of one prompt to a model that generates; the core answers others, as it counts and refuses them."""

    def __init__(self, handlers: HttpFrontend, forward: Callable[[HttpRequest, HttpReply], None]) -> None:
        super().__init__(handlers.parts, handlers.models)
        self._forward = forward

    def begin(
        self, dialect: Dialect[Any], request: HttpRequest, reply: HttpReply, call: Any, timeline: Timeline
    ) -> None:
        prompts = call.prompts if isinstance(call, CompletionCall) else ()
        if call.ignored or len(prompts) > 1 or not self._generates(call.model):
            self._forward(request, reply)
        else:
            super().begin(dialect, request, reply, call, timeline)

    def _generates(self, name: str) -> bool:
        try:
            self._models.find(name)
        except ConchError:
            return False
        return True


class _StrictFields(IgnoredFields):
    """Refuses ignored fields where the server is strict; else the core gets the call, and reports them."""

    def __init__(self, strict: bool) -> None:
        super().__init__(strict)
        self._is_strict = strict

    def report(self, endpoint: str, reply: HttpReply, call: ReadCall) -> None:
        if self._is_strict:
            super().report(endpoint, reply, call)


class _LogToCore(logging.Handler):
    """Sends records to the core, whose log is the only one."""

    def __init__(self, link: FrontendLink) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()[:_MAX_LOGGED]
        block = ""
        if record.exc_info:
            block = logging.Formatter().formatException(record.exc_info)[:_MAX_LOGGED]
        self._link.send((LOG, record.name, record.levelno, text, record.pathname, record.lineno, block, time.time()))


def _configure_log(link: FrontendLink, options: ServerOptions) -> None:
    root = logging.getLogger()
    root.handlers = [_LogToCore(link)]
    root.setLevel(logging.DEBUG if options.log_verbose else logging.INFO)
