"""The composition root: builds the parts of the server, starts and stops them.

The only module that imports all layers. It has no logic of requests.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import orjson
import uvloop

from conch.base import logs
from conch.base.build_info import build_line
from conch.base.command_line.flag_values import words_of
from conch.base.errors import ConchError, ConfigError, FailureReason, Unavailable
from conch.base.process.running_servers import RunningServer, local_address, recorded
from conch.base.process.stop_signals import stop_signals
from conch.domain.declared_metrics.request_metrics import DeclaredMetrics
from conch.domain.events.redaction import Redaction
from conch.domain.events.rows import Row
from conch.domain.exposition import Family, Point
from conch.domain.scheduling.rate_limiter import RateLimiter
from conch.machine import condition
from conch.machine.accelerators.gpus import discover_gpus
from conch.machine.accelerators.model_attribution import AttributedProcess, server_process
from conch.machine.accelerators.monitor import AcceleratorMonitor, server_monitor
from conch.machine.condition import ClockWatch, Throttling
from conch.machine.memory import default_request_memory, worker_memory
from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.connections.body_budget import BodyBudget
from conch.protocols.connections.listener import raise_file_limit
from conch.server.backends.child.conch_child.ipc import heap
from conch.server.backends.engines.memory import EngineMemory
from conch.server.backends.processes.fork_server import ForkServer
from conch.server.backends.registry import BackendRegistry, ineffective_settings, unknown_settings
from conch.server.core.bls import BlsCalls
from conch.server.core.catalog import Catalog
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.inference import Inference
from conch.server.core.loading.builder import ModelBuilder
from conch.server.core.loading.load_outcomes import model_table
from conch.server.core.loading.model_manager import ALL_MODELS, ModelManager, StartReport
from conch.server.core.model_watch import ModelWatch, StoppedProcesses
from conch.server.core.redis_store import RedisSettings, RedisStore
from conch.server.core.request_limits import limit_manager, limit_metrics
from conch.server.core.response_cache import ResponseCache
from conch.server.core.shared_memory.regions import SharedMemory
from conch.server.frontends.offload.pool import MAX_WORKER_MEMORY_BYTES, OffloadPool, default_workers
from conch.server.frontends.openai.batches.runner import BatchRunner
from conch.server.frontends.openai.batches.store import BatchStore
from conch.server.frontends.openai.chat import ChatPrompts
from conch.server.frontends.openai.ignored_fields import IgnoredFields
from conch.server.frontends.parts import Parts
from conch.server.frontends.processes.supervisor import FrontendProcesses, frontends_for
from conch.server.frontends.services import Service, frontend_families, listener_families, services
from conch.server.frontends.why_header import ShortForms
from conch.server.observability.degradations import Degradations, Probe, log_degradation
from conch.server.observability.event_log import EventRecorder
from conch.server.observability.event_reading import EventReader, log_families
from conch.server.observability.incidents.incidents import Incidents, Sources, facts
from conch.server.observability.incidents.payloads import Payloads
from conch.server.observability.incidents.triggers import Counts, Triggers
from conch.server.observability.metrics.custom import MetricSample
from conch.server.observability.metrics.families import Metrics, RequestMemory, otlp_exporter
from conch.server.observability.metrics.loop_lag import GarbagePauses, LoopLag
from conch.server.observability.metrics.proc_meters import ProcessMeter
from conch.server.observability.tracing.observer import Observer
from conch.server.options.server_options import ServerOptions
from conch.server.repository.agents import run_agents
from conch.server.repository.model_dir import ModelDirRoot, wait_for_path
from conch.server.repository.model_location import Root
from conch.server.repository.namespaces import ModelId, Repositories
from conch.server.repository.roots import open_root, public_name
from conch.server.repository.store import Repository
from conch.server.repository.temporary_folders import remove_abandoned

_log = logging.getLogger(__name__)

# Of messages that end the start.
_START_HELP = "see docs/troubleshooting.md#at-the-start"

_MIN_THREADS_TIMEOUT_S = 0.5
_DRAIN_POLL_S = 0.01
# Between slices of a millisecond, when the event log is read for a bundle: an incident has load enough.
_READ_PAUSE_S = 0.003
# After the shutdown delay: how long requests may still come on connections that are open.
_LAST_REQUESTS_S = 1.0


class Server:
    """One server. Life cycle: `start` → `load_models` → `stop`; `running` is a context manager for it.

    `fork_server` is one that is already running; `log` are the settings of this process's log.
    """

    _accelerators: AcceleratorMonitor | None = None
    _metrics: Metrics | None = None

    def __init__(
        self,
        options: ServerOptions,
        fork_server: ForkServer | None = None,
        log: logs.LogSettings | None = None,
        *,
        alarm: bool = False,
    ) -> None:
        """Create the parts. `alarm`: use SIGALRM to find the code that blocks the event loop."""
        self._options = options
        self._catalog = Catalog()
        redis = options.redis_settings
        self._store = RedisStore(RedisSettings.of(redis, os.environ)) if redis else None
        self._cache = ResponseCache(options.cache_bytes) if options.cache_bytes or redis else None
        engine_memory = EngineMemory()
        self._shared_memory = (
            SharedMemory(prefix=options.client_shm_prefix, own=engine_memory.segments)
            if options.allow_client_shm
            else None
        )
        self._observer = Observer()
        self._budget = BodyBudget(options.request_memory_limit or default_request_memory())
        self.log = log or _log_settings(options)
        self._codecs = OffloadPool("codec", memory_bytes=worker_memory(default_workers(), MAX_WORKER_MEMORY_BYTES))
        self._prompts = ChatPrompts()
        self._recorder = EventRecorder(options.event_log_bytes)
        self._pauses = GarbagePauses(self._recorder)
        self._lag = LoopLag(alarm=alarm, recorder=self._recorder, pauses=self._pauses)
        self._accepting = False
        self.inference = Inference(
            self._catalog, strict_readiness=options.strict_readiness, started=lambda: self._accepting
        )
        # BLS calls need the model manager, which needs the backends, which need the calls; hence the lambda.
        calls = BlsCalls(self._catalog, self.inference, lambda: self.control, started=lambda: self._accepting)
        self._backends = _backend_registry(fork_server, calls, engine_memory)
        self._repositories = repositories = Repositories(_repositories(options))
        self._declared = _declared_metrics(options)
        self._builder = ModelBuilder(
            options,
            self._backends,
            self._catalog,
            cache=self._cache,
            store=self._store,
            limiter=None if options.rate_limit == "off" else RateLimiter(options.rate_limit_resource),
            declared=self._declared,
            events=self._recorder,
            suggestion=repositories.suggestion,
        )
        self.control = ModelManager(options, repositories, self._builder, self._catalog)
        self._keys = ApiKeys(options.api_key_file, options.openai_api_key, options.openai_api_key_file)
        self._limits = limit_manager(options, self.inference)
        self._limits.recorder = self._recorder
        self._batches = (
            BatchRunner(BatchStore(Path(options.batch_dir), options.batch_max_bytes), self.inference)
            if options.batch_dir
            else None
        )
        self._payloads = Payloads(options.incident_requests, words_of(options.incident_redact))
        self.inference.keep = self._payloads.keep if options.incident_requests != "shapes" else None
        self._events = EventReader(self._recorder, self._unfinished, self._documents) if self._recorder.on else None
        self.incidents = self._incidents()
        self._clock = ClockWatch()
        self._throttling = Throttling()
        self.degradations = Degradations(options.strict_reasons, lambda: self._watch.degradations(), self._probes())
        self._ignored_fields = IgnoredFields(options.openai_strict, self.degradations.note)
        self._watch = ModelWatch(
            self.inference.models, self.degradations.note, log_degradation, options.hang_timeout_secs
        )
        self._stalls = 0  # of the event loop, at the last sample
        self._watchers: list[asyncio.Task[None]] = []
        self._services: list[Service] = []  # that listen
        self.frontend_processes: FrontendProcesses | None = None
        self.ports: dict[str, int] = {}  # of the services: "http", "openai", "grpc", "metrics"

    async def start(self) -> None:
        """Listen on all ports. The server is live, but not ready. Raises ConfigError."""
        self._catalog.loads.begin_reading()
        self._observer = Observer.of(self._options)
        for notice in _ineffective(self._options):
            self.degradations.report(*notice)
        self._builder.gpus = await discover_gpus(
            self._options.min_compute_capability, lambda text: self.degradations.report("gpu_unusable", text)
        )
        for number in sorted({number for number, _ in self._options.model_load_gpu_limit}):
            if not any(gpu.number == number for gpu in self._builder.gpus):
                text = f"--model-load-gpu-limit has no effect: this server can use no GPU {number}"
                self.degradations.report("flag_ignored", text)
        self.degradations.check_start()
        if self._keys:
            self._keys.load()
            self._watchers.append(asyncio.create_task(self._keys.watch()))
        await self._limits.start()
        if self._batches is not None:
            await self._batches.open()
        self._lag.start()
        self.incidents.start()
        self._pauses.start()
        self._accelerators = self._accelerator_monitor()
        if self._accelerators is not None:
            self._accelerators.start()
        parts = Parts(
            self._options,
            self.inference,
            self.control,
            shared_memory=self._shared_memory,
            observer=self._observer,
            log=self.log,
            budget=self._budget,
            codecs=self._codecs,
            prompts=self._prompts,
            metrics=self._start_metrics(),
            keys=self._keys,
            limits=self._limits,
            batches=self._batches,
            ignored_fields=self._ignored_fields,
            recorder=self._recorder,
            events=self._events,
            explain=ShortForms(self._events).explain if self._events else None,
            incidents=self.incidents,
        )
        count = self._options.frontend_processes or frontends_for(len(os.sched_getaffinity(0)))
        if count > 1:
            self.frontend_processes = FrontendProcesses(parts, self._catalog, count)
        for service in services(parts, self.frontend_processes):
            with _naming_flags(service, of_run=bool(self._options.source)):
                await service.listener.start(
                    listen=service.flags == "metrics" or not self._options.listen_when_ready,
                    attempts=self._options.port_attempts,
                )
            self._services.append(service)
            self.ports[service.flags] = service.listener.port
        if self.frontend_processes is not None:
            await self.frontend_processes.start(listen=not self._options.listen_when_ready)
        for service in self._services:
            _log.info("Started %s at %s:%d", service.name, service.address, service.listener.port)

    async def load_models(self) -> StartReport:
        """Load the initial models and log their states. Returns their number and the failed ones.

        Raises ConchError if the repository cannot be read. With --exit-on-error=false the server then runs without
        models, as in Triton.
        """
        mode = self._options.model_control_mode
        report = StartReport(requested=0)
        if removed := await asyncio.to_thread(remove_abandoned):
            _log.info("removed the uploaded files of %d killed servers", removed)
        if self._options.model_dir:
            await wait_for_path(Path(self._options.model_dir), self._options.model_dir_wait_secs)
        try:
            report = await self.control.load_at_start(self._options.load_model if mode == "explicit" else [ALL_MODELS])
        except ConchError as error:
            if self._options.exit_on_error:
                raise
            self._catalog.start_failed = True
            _log.error("cannot read the model repository: %s; running without models", error)
        else:
            self._log_models()
        if mode == "poll":
            self._watchers.append(asyncio.create_task(self.control.poll(self._options.repository_poll_secs)))
        self._accepting = True
        if self._batches is not None:
            self._batches.start()
        self.degradations.log_table()
        self._watchers.append(asyncio.create_task(self.degradations.run(self._sample)))
        if self._recorder.on:
            self._watchers.append(asyncio.create_task(StoppedProcesses(self.inference.models).run()))
        self._stalls = self._lag.stalls
        if self._options.listen_when_ready:
            for service in self._services:
                if service.flags != "metrics":
                    await service.listener.listen()
        if any(isinstance(model, GenerativeModel) for model in self.inference.models()):
            self._prompts.warm()
        heap.collect_less_often()
        heap.keep_freed_memory()
        return report

    def report_phases(self, on_phase: Callable[[ModelId, str], None] | None) -> None:
        """Call `on_phase` when a load is in a new phase, "" at its end."""
        self._catalog.loads.on_phase = on_phase

    def record(self) -> RunningServer:
        """Return the record of this process, for other programs of the user. To be called after `start`."""
        options = self._options
        addresses = {
            "http": options.http_address,
            "grpc": options.grpc_address,
            "metrics": options.metrics_address or options.http_address,
        }
        places = {name: local_address(address, self.ports.get(name)) for name, address in addresses.items()}
        roots = (*map(public_name, options.model_repository), *filter(None, [options.model_dir]))
        source = options.source or ", ".join(roots)
        tls = options.http_use_ssl or options.metrics_use_ssl
        return RunningServer(
            os.getpid(),
            **places,
            source=source,
            started=time.time(),
            idle_unload_s=options.idle_unload_secs,
            certificate=str(Path(options.http_server_cert).absolute()) if tls else "",
            http_tls=options.http_use_ssl,
            metrics_tls=options.metrics_use_ssl,
            client_certificates=options.http_use_ssl_mutual,
        )

    def _log_models(self) -> None:
        """Log the table of the models, or which repositories have none."""
        index = self.control.index(ready_only=False)
        rows = [row for row in index if row.state]
        if rows:
            documents = [row._asdict() for row in rows]
            _log.info("models", extra={"block": model_table(rows), "structured": {"models": documents}})
            return
        roots = (*map(public_name, self._options.model_repository), self._options.model_dir)
        places = ", ".join(f"'{root}'" for root in roots if root)
        if index:
            _log.info("no model is loaded; clients can load the %d models of %s", len(index), places)
        else:
            _log.warning("no models found in %s; expected <repository>/<model>/<version>/<file>", places)

    async def leave(self) -> None:
        """Report not ready and serve on for --shutdown-delay-secs, then close the ports and serve what is on its way.

        A request that comes in this time is answered. Clients are asked to open other connections: for load balancers
        without health checks, which learn of the end when these are refused.
        """
        self._accepting = False
        listeners = [service.listener for service in self._services]
        for listener in listeners:
            listener.retire_connections()
        await asyncio.sleep(self._options.shutdown_delay_secs)
        for listener in listeners:
            listener.stop_accepting()
            listener.retire_connections()
        for _ in range(round(_LAST_REQUESTS_S / _DRAIN_POLL_S)):
            await asyncio.sleep(_DRAIN_POLL_S)
            if not any(listener.connections for listener in listeners):
                break

    async def stop(self) -> bool:
        """Report not ready, drain the admitted requests and stop. Returns whether that was done in time."""
        self._accepting = False
        for task in self._watchers:
            task.cancel()
        if self._batches is not None:
            await self._batches.stop()
        limit = self._options.exit_timeout_secs
        in_time = True
        try:
            async with asyncio.timeout(limit or None):
                await self._drain()
                await asyncio.gather(*(service.listener.stop(float(limit)) for service in self._services))
                await self.control.stop()
        except TimeoutError:
            _log.error(
                "Exit timeout expired. Exiting immediately. (%d requests in flight, %d connections open)",
                self.inference.requests_in_flight,
                sum(service.listener.connections for service in self._services),
            )
            await self.control.abandon()
            in_time = False
        if self.frontend_processes is not None:
            await self.frontend_processes.stop()
        await self._limits.stop()
        await self.incidents.stop()
        await self._backends.stop()
        self._lag.stop()
        self._pauses.stop()
        if self._accelerators is not None:
            await self._accelerators.stop()
        await self._codecs.stop()
        await self._prompts.stop()
        if self._store is not None:
            await self._store.close()
        await self._observer.close()
        return in_time

    async def _drain(self) -> None:
        """Stop accepting connections and requests, and wait until none is in flight."""
        self.inference.stop_accepting()
        for service in self._services:
            service.listener.stop_accepting()
        while not self.inference.idle:  # noqa: ASYNC110 - requests that end set no event
            await asyncio.sleep(_DRAIN_POLL_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Server"]:
        """Run the server around a block, for programs and tests with their own event loop."""
        try:
            await self.start()
            await self.load_models()
            yield self
        finally:
            await self.stop()

    def _start_metrics(self) -> Metrics:
        meter = None
        options = self._options
        if options.allow_metrics or options.metrics.otlp_endpoint:
            meter = ProcessMeter(self._pids, options.metrics_interval_ms / 1000)
            self._watchers.append(asyncio.create_task(meter.run()))
        metrics = Metrics(
            statistics=self.inference.statistics,
            samples=self._samples,
            options=self._options,
            cache=None if self._cache is None else self._cache.statistics,
            request_memory=self._request_memory,
            lag=self._lag,
            meter=meter,
            collectors=[
                lambda: listener_families(self._services),
                lambda: [Family.of("conch_api_keys_up", [Point(int(self._keys.up), {})])],
                lambda: () if self._accelerators is None else self._accelerators.families(),
                lambda: () if self._declared is None else self._declared.families(),
                lambda: limit_metrics(self._limits, self.inference),
                self.degradations.families,
                self._ignored_fields.families,
                self.incidents.families,
                lambda: log_families(self._recorder),
                lambda: frontend_families(self.frontend_processes, self._services),
            ],
        )
        self._metrics = metrics
        exporter = otlp_exporter(options, metrics)
        if exporter is not None:
            self._watchers.append(asyncio.create_task(exporter.run()))
        return metrics

    def _probes(self) -> dict[str, Probe]:
        """Return the conditions of the server and its machine that are sampled, by reason."""
        options = self._options
        probes: dict[str, Probe] = {
            "interpreted_build": condition.interpreted_build,
            "one_core": condition.one_core,
            "huge_pages_off": condition.huge_pages_off,
            "file_descriptors_low": condition.file_descriptors_low,
            "swapped": condition.swapped,
            "gpu_metrics_missing": lambda: "; ".join(self._accelerators.failures) if self._accelerators else "",
            "traces_dropped": lambda: self._observer.problem,
            "incident_not_written": lambda: self.incidents.problem,
            "log_lines_lost": lambda: "lines of the log could not be written" if logs.losing_lines() else "",
            "custom_series_dropped": lambda: self._metrics.problem if self._metrics else "",
            "api_keys_stale": lambda: "" if self._keys.up else "the file of API keys is not valid; earlier keys remain",
            "repository_unreachable": self._unreachable,
            "cache_unreachable": lambda: "" if self._store is None else self._store.problem,
        }
        if options.allow_client_shm:
            probes["shared_memory_small"] = condition.shared_memory_small
        if options.grpc_use_ssl:
            probes["certificate_expiring"] = lambda: condition.certificate_expiring(options.grpc_server_cert)
        elif options.http_use_ssl or options.metrics_use_ssl:
            probes["certificate_expiring"] = lambda: condition.certificate_expiring(options.http_server_cert)
        return probes

    def _unreachable(self) -> str:
        """Return the first served model whose remote repository has not answered, with the cause; "" for none."""
        for model in self.inference.models():
            try:
                self._repositories.check_reachable(model.id)
            except Unavailable as error:
                return error.message
        return ""

    def _sample(self) -> None:
        """Sample what happens at one moment, and the models."""
        for reason, detail in (("clock_stepped", self._clock.step()), ("cpu_throttled", self._throttling())):
            if detail:
                self.degradations.note(reason, detail)
        stalls, self._stalls = self._lag.stalls - self._stalls, self._lag.stalls
        if stalls:
            self.degradations.note("loop_blocked", f"the event loop was blocked {stalls} times for more than 100 ms")
        self._watch.sample()

    def _unfinished(self) -> Iterator[tuple[str, Row]]:
        """Yield the event log's rows of what has not ended."""
        for model in self.inference.models():
            yield from model.unfinished()

    def _documents(self) -> dict[str, object]:
        """Return the configuration of each model's newest version, as its endpoint does."""
        return {model.config.name: model.config.document for model in self.inference.models()}

    def _incidents(self) -> Incidents:
        options = self._options
        sources = Sources(
            events=partial(self._events.read_in_slices, pause_s=_READ_PAUSE_S) if self._events else None,
            metrics=lambda: self._metrics.pieces() if self._metrics else iter(()),
            models=self._model_documents,
            limits=self._limits.document,
            environment=lambda: facts(options),
            requests=self._payloads.documents,
            counts=self._incident_counts,
        )
        folder = Path(options.incident_dir).absolute() if options.incident_dir else None
        triggers = Triggers(options.incident_p99_ms, options.incident_failures)
        return Incidents(sources, triggers, folder, options.incident_keep, options.incident_interval_secs)

    def _model_documents(self) -> dict[str, object]:
        """Return the configurations of the served models without secrets, with digests of them and of their files."""
        redaction, loaded = Redaction(), self.control.fingerprints()
        return {
            f"{model.id}/{model.version}": {
                "config": redaction.of_json(dict(model.config.document)),
                "config_digest": _digest(dict(model.config.document)),
                "files_digest": _digest(loaded.get(model.id, ())),
            }
            for model in self.inference.models()
        }

    def _incident_counts(self) -> dict[str, Counts]:
        by_model: dict[str, Counts] = {}
        for model in self.inference.models():
            statistics = model.statistics
            statistics.slow_ns = self._options.incident_p99_ms * 1_000_000
            failures = statistics.fail.count - statistics.failures[FailureReason.CANCELED]
            counts = Counts(statistics.success.count, statistics.slow, failures, model.state().restarts)
            by_model[f"{model.id}/{model.version}"] = counts
        return by_model

    def _pids(self) -> list[int]:
        return [pid for model in self.inference.models() for _, pid in model.state().processes]

    def _model_processes(self) -> list[AttributedProcess]:
        """Return the processes of models, and the server's, in which the others run."""
        processes: list[AttributedProcess] = []
        in_process: list[tuple[str, str]] = []
        for model in self.inference.models():
            name, version, state = model.config.name, str(model.version), model.state()
            processes += [AttributedProcess(pid, name, version, instance) for instance, pid in state.processes]
            if state.instances > len(state.processes):
                in_process.append((name, version))
        return [*processes, server_process(os.getpid(), in_process)]

    def _accelerator_monitor(self) -> AcceleratorMonitor | None:
        options = self._options
        if not (options.allow_metrics and options.allow_gpu_metrics):
            return None
        return server_monitor(
            self._model_processes,
            dcgm_names=options.dcgm_names,
            interval_ms=options.metrics_interval_ms,
            host_proc=options.host_proc,
        )

    def _samples(self) -> list[MetricSample]:
        """Return the custom metrics of models. Those of a file have precedence over others of their names."""
        taken = frozenset() if self._declared is None else self._declared.names
        samples = (sample for backend in self._backends for sample in backend.custom_metrics())
        return [sample for sample in samples if sample.family not in taken]

    def _request_memory(self) -> RequestMemory:
        budget = self._budget
        used, refused, evicted = (0, 0, 0) if self.frontend_processes is None else self.frontend_processes.memory
        return RequestMemory(
            budget.limit_bytes, budget.used_bytes + used, budget.refused + refused, budget.evicted + evicted
        )


def _ineffective(options: ServerOptions) -> Iterator[tuple[str, str]]:
    """Yield reason and notice of each flag without effect. Flags that are only deprecated are logged."""
    for notice in options.notices:
        if " is deprecated; " in notice:
            _log.warning("%s", notice)
        else:
            yield "flag_ignored", notice
    given = [(setting.backend, setting.key) for setting in options.backend_config]
    for notice in (*ineffective_settings(backend for backend, _ in given), *unknown_settings(given)):
        yield "backend_setting_ignored", notice


@contextmanager
def _naming_flags(service: Service, *, of_run: bool) -> Iterator[None]:
    """Name the flags of the address in the error if it cannot be bound; `of_run`: those of `conch run`."""
    try:
        yield
    except OSError as error:
        # strerror of the event loop differs from that of the system; errors of name resolution have negative numbers.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        flags = f"--{service.flags}-port"
        if of_run:
            flags = "--address and --port"
        elif hasattr(ServerOptions, f"{service.flags}_address"):
            flags = f"--{service.flags}-address and {flags}"
        remedy = "choose another" if " " in flags else "chooses another"
        raise ConfigError(f"cannot listen on {service.address}:{service.port}: {reason}; {flags} {remedy}") from error


def _repositories(options: ServerOptions) -> Iterator[Repository]:
    """Yield one repository of all roots, or with namespacing one of each. Raises ConfigError."""
    roots = list(_roots(options))
    namespaces: dict[str, list[Root]] = {"": [root for _, root in roots]}
    if options.model_namespacing:
        namespaces = {name: [root] for name, root in roots}
    for namespace, chosen in namespaces.items():
        yield Repository(
            chosen,
            config_name=options.model_config_name,
            auto_complete=not options.disable_auto_complete_config,
            namespace=namespace,
            agents=run_agents,
        )


def _roots(options: ServerOptions) -> Iterator[tuple[str, Root]]:
    for place in options.model_repository:
        yield (
            public_name(place),
            open_root(
                place,
                options.repository_cache,
                verify_key=options.repository_verify_key,
                cache_limit=options.repository_cache_limit,
            ),
        )
    if options.model_dir:
        folder = Path(options.model_dir).absolute()
        yield (
            options.model_dir,
            ModelDirRoot(folder, options.model_name, allow_pickles=options.allow_pickled_models),
        )


def _backend_registry(fork_server: ForkServer | None, calls: BlsCalls, memory: EngineMemory) -> BackendRegistry:
    forks = {"fork_server": fork_server}
    python, engines = {**forks, "calls": calls}, {**forks, "memory": memory}
    return BackendRegistry(
        {
            **dict.fromkeys(("python", "pytorch"), python),
            **dict.fromkeys(("openvino_genai", "vllm"), engines),
            **dict.fromkeys(("scripted", "tensorrtllm"), forks),
        }
    )


def _digest(document: object) -> str:
    """Return the SHA-256 of a JSON value."""
    return f"sha256:{sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()}"


def _declared_metrics(options: ServerOptions) -> DeclaredMetrics | None:
    """Return the metrics that a file declares, None without one. Raises ConfigError, Unavailable."""
    if not options.metrics.custom_metrics:
        return None
    from conch.domain.declared_metrics.declaration import read_declarations  # imports a library

    return DeclaredMetrics(read_declarations(Path(options.metrics.custom_metrics)))


def run(
    options: ServerOptions,
    fork_server: ForkServer | None = None,
    ready: Callable[[Server], None] | None = None,
    on_phase: Callable[[ModelId, str], None] | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT or SIGHUP. Returns 0, or 1 if the start failed or the stop timed out.

    `ready` is called once, when the initial models are loaded, `on_phase` when a load is in a new phase, "" at its end.
    Threads, such as that of a load, cannot be cancelled: if one does not end in time, the process exits.
    """
    log = _log_settings(options)
    logs.configure(log)
    _log.info("Conch %s", build_line())
    raise_file_limit()
    status: int = uvloop.run(_serve(options, fork_server, log, ready, on_phase))
    return status


async def _serve(
    options: ServerOptions,
    fork_server: ForkServer | None,
    log: logs.LogSettings,
    ready: Callable[[Server], None] | None,
    on_phase: Callable[[ModelId, str], None] | None,
) -> int:
    stopping = stop_signals()
    try:
        server = Server(options, fork_server, log, alarm=True)
    except ConchError as error:  # an invalid repository
        _log.error("cannot start: %s; %s", error, _START_HELP)
        return 1
    try:
        server.report_phases(on_phase)
        await server.start()
        signal.signal(signal.SIGUSR2, lambda *_: server.incidents.on_signal())
        with recorded(server.record()):
            starting = asyncio.ensure_future(server.load_models())
            await asyncio.wait([starting, asyncio.ensure_future(stopping.wait())], return_when=asyncio.FIRST_COMPLETED)
            if not stopping.is_set() and (report := await starting).failed:
                if report.requested > 1 or not options.source:
                    _log.error("%s", report)
                if options.exit_on_error:
                    if not options.source:  # conch run has no such flag
                        _log.error("exiting; use --exit-on-error=false to serve the other models; %s", _START_HELP)
                    await server.stop()
                    return 1
            if starting.done() and ready is not None:
                ready(server)
            await stopping.wait()
        if starting.done() and options.shutdown_delay_secs:
            _log.info("Not ready; stopping in %d s", options.shutdown_delay_secs)
            await server.leave()
        starting.cancel()
    except (OSError, ConchError) as error:
        _log.error("cannot start: %s; %s", error, _START_HELP)
        await server.stop()
        return 1
    _log.info(
        "Waiting for in-flight requests to complete. %d in flight; a second Ctrl-C or SIGTERM kills the server",
        server.inference.requests_in_flight,
    )
    in_time = await server.stop()
    if not await _threads_ended(options.exit_timeout_secs if in_time else 0):
        _log.error("a model is still loading; exiting without waiting for it")
        if fork_server is not None:
            fork_server.stop()
        logging.shutdown()
        os._exit(1)
    return 0 if in_time else 1


async def _threads_ended(timeout_s: int) -> bool:
    """Wait for the threads of the event loop's executor; with a timeout of 0 s only briefly."""
    ended = asyncio.ensure_future(asyncio.get_running_loop().shutdown_default_executor())
    await asyncio.wait([ended], timeout=timeout_s or _MIN_THREADS_TIMEOUT_S)
    return ended.done()


def _log_settings(options: ServerOptions) -> logs.LogSettings:
    return logs.LogSettings(
        options.log_file,
        options.log_info,
        options.log_warning,
        options.log_error,
        options.log_verbose,
        logs.PLAIN if options.source and options.log_format == "default" else options.log_format,
    )
