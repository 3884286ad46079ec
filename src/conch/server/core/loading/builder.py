"""Builds the versions of a model from its files: completes the configuration, makes instances, starts them."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, TypeAlias

from conch.base.errors import ConchError, ConfigError, InvalidRequest, ModelLoadError, NotFound
from conch.domain.config.resolve import resolve
from conch.domain.declared_metrics.request_facts import ModelIdentity
from conch.domain.declared_metrics.request_metrics import DeclaredMetrics, RequestMetrics
from conch.domain.degradations import Degradation
from conch.domain.files.model_folder import chosen_versions, read_labels
from conch.domain.model_config import InstanceGroup, InstanceKind, ModelConfig, RateLimit
from conch.domain.scheduling.flow import Flow, flow_of
from conch.domain.scheduling.rate_limiter import RateLimiter
from conch.machine.accelerators.gpus import Gpu, list_gpus
from conch.server.backends.base import Backend, Instance, InstancePlan, ModelSource
from conch.server.backends.engines.backend import EngineBackend
from conch.server.backends.registry import BackendRegistry
from conch.server.core.catalog import Catalog
from conch.server.core.ensembles.contract import check_ensemble, misfit_notices
from conch.server.core.ensembles.ensemble_model import EnsembleModel
from conch.server.core.ensembles.nesting import check_nesting
from conch.server.core.generative_model import GenerativeModel
from conch.server.core.idle_engine import IdleEngine, idle_seconds
from conch.server.core.loading.load_outcomes import load_error
from conch.server.core.redis_store import content_identity
from conch.server.core.remote_response_cache import EntryStore, RemoteModelCache
from conch.server.core.response_cache import ModelCache, ResponseCache
from conch.server.core.scheduling.batching_model import BatchingModel
from conch.server.core.scheduling.model_limiter import ModelLimiter
from conch.server.core.scheduling.scheduled_model import ScheduledModel
from conch.server.core.sequences.sequence_model import SequenceModel
from conch.server.core.sequences.tensors import instance_config
from conch.server.core.served_model import ServedModel
from conch.server.core.text_encoder import open_text_encoder
from conch.server.observability.degradations import LoadReport, Report
from conch.server.observability.event_log import EventRecorder, ModelEvents
from conch.server.options.server_options import ServerOptions
from conch.server.repository.namespaces import ModelId
from conch.server.repository.store import ModelFiles

_log = getLogger(__name__)

# Of the causes in the error for missing steps: how many, and the length of each.
_MAX_CAUSES = 10
_MAX_CAUSE_CHARS = 1000


@dataclass(slots=True)
class Built:
    """The versions of a model after a load: the started ones, with those `kept` from before, and the failures."""

    config: ModelConfig | None = None  # None if it could not be completed
    served: dict[int, ServedModel] = field(default_factory=dict)
    failures: dict[int, ConchError] = field(default_factory=dict)
    kept: dict[int, ServedModel] = field(default_factory=dict)

    async def discard(self) -> None:
        """Stop the versions that were started; kept ones continue."""
        await asyncio.gather(*(model.stop() for version, model in self.served.items() if version not in self.kept))


class ModelBuilder:
    """Builds models; holds none of them.

    `gpus` are the devices that models may use, known before the first load;
    `cache` is for the models whose configuration enables it, None if the server has none; with a `store`, it has none
    of the responses itself and only the statistics;
    `limiter` admits each execution, None without --rate-limit;
    `declared` are the metrics that a file declares, None without one;
    `events` records what models do, None without an event log.
    """

    def __init__(
        self,
        options: ServerOptions,
        backends: BackendRegistry,
        catalog: Catalog,
        *,
        cache: ResponseCache | None = None,
        store: EntryStore | None = None,
        limiter: RateLimiter | None = None,
        declared: DeclaredMetrics | None = None,
        events: EventRecorder | None = None,
        suggestion: Callable[[str], str] = lambda _name: "",
    ) -> None:
        self._options = options
        self._backends = backends
        self._catalog = catalog
        self.gpus: Sequence[Gpu] = ()
        self._cache = cache
        self.store = store
        self._limiter = limiter
        self._declared = declared
        self.events = events or EventRecorder()
        self._suggestion = suggestion
        self._policy_cores = options.policy_cores

    @property
    def _gpu_numbers(self) -> list[int]:
        return [gpu.number for gpu in self.gpus]

    async def configure(self, files: ModelFiles) -> ModelConfig:
        """Return the configuration completed by the model itself. Raises ConfigError, ModelLoadError."""
        report = self._report(files)
        self._catalog.loads.enter(ModelId(files.namespace, files.config.name), "reading")
        if files.config.is_ensemble:
            resolved = await asyncio.to_thread(resolve, files.document, backend=None, gpus=self._gpu_numbers)
        else:
            backend = await self._backends.get(files.config.backend)
            document: Mapping[str, Any] = files.document
            if not self._options.disable_auto_complete_config and files.versions_on_disk:
                source = self._source(files, files.config, _completing_version(files), report)
                if self.gpus and backend.can_use_gpus:
                    source = source_on(source, self.gpus, InstanceKind.GPU, self.gpus[0].number)
                document = await backend.complete(source)
            resolved = await asyncio.to_thread(resolve, document, backend=backend, gpus=self._gpu_numbers)
            if resolved.config.max_batch_size and not files.document.get("max_batch_size"):
                resolved = replace(resolved, config=_with_batch_origin(resolved.config))
        config = resolved.config
        for reason, notice in resolved.notices:
            report(reason, notice)
        if config.response_cache and self._cache is None and self.store is None:
            report("cache_off", f"response_cache of model '{config.name}' has no effect without --cache-config")
        if self._limiter is None and any(group.rate.resources for group in config.instance_groups):
            report(
                "rate_limiter_off",
                f"rate_limiter of model '{config.name}' has no effect without --rate-limit=execution_count",
            )
        for group in config.instance_groups:
            if group.host_policy and group.host_policy not in self._policy_cores:
                text = f"host_policy '{group.host_policy}' of model '{config.name}' has no effect without --host-policy"
                report("setting_ignored", text)
        if not config.warmups and any(group.kind is InstanceKind.GPU for group in config.instance_groups):
            report("gpu_without_warmup", f"model '{config.name}' runs on a GPU and has no model_warmup")
        return replace(config, degraded=tuple(report.degradations))

    async def build(
        self, files: ModelFiles, config: ModelConfig, unchanged: Mapping[int, ServedModel] | None = None
    ) -> Built:
        """Start every version that the version policy selects.

        Versions that are served from `unchanged` files are kept if their configuration is the same, too.
        Raises ModelLoadError or ConfigError if none can be started.
        """
        versions = await asyncio.to_thread(chosen_versions, config, files.versions_on_disk, files.directory)
        labels = await asyncio.to_thread(read_labels, config, files.directory)
        flow: Flow | None = None
        if config.is_ensemble:
            try:
                configs = self._step_configs(config, files.namespace)
                fit, notices = await asyncio.to_thread(_check_flow, config, configs)
            except ConfigError as error:
                raise ConfigError(f"{error.message} ({files.config_source})") from error
            report = self._report(files, config.degraded)
            for notice in notices:
                report("steps_misfit", f"{notice} ({files.config_source})")
            config = replace(config, degraded=tuple(report.degradations))
            flow = fit
            config = _with_transaction_policy(config, decoupled=bool(fit.depth))
        candidates = unchanged or {}
        kept = {v: candidates[v] for v in versions if v in candidates and _is_current(candidates[v], config, flow)}
        built = Built(served=dict(kept), kept=kept, config=config)
        new = [version for version in versions if version not in kept]
        await asyncio.gather(*(self._build_version(built, files, config, version, labels, flow) for version in new))
        return built

    async def rearrange(self, files: ModelFiles, old: ModelFiles, served: Mapping[int, ServedModel]) -> bool:
        """Change the instances of served versions, if nothing else of the model has changed.

        Returns False if something else has. Raises ConchError, OSError; then some of the versions may have changed.
        """
        if not _same_but_configuration(files, old):
            return False
        models = [model for model in served.values() if isinstance(model, ScheduledModel) and model.can_rearrange]
        if len(models) < len(served):
            return False
        config = await self.configure(files)
        if not all(_differ_in_instances(model.config, config) for model in models):
            return False
        backend = await self._backends.get(config.backend)
        for model in models:
            report = self._report(files, config.degraded)
            source = self._source(files, instance_config(config), model.version, report)
            await model.rearrange(config, rearranged(backend, source, self.gpus, model.instances, self._cores))
            model.degraded = report.degradations
        return True

    def _report(self, files: ModelFiles, known: Sequence[Degradation] = ()) -> LoadReport:
        """Return what collects the degradations of one load, beginning with those that are `known`."""
        model = ModelId(files.namespace, files.config.name)
        return LoadReport(str(model), self._options.strict_reasons, known)

    def check_steps(self, config: ModelConfig, namespace: str) -> Flow:
        """Return the flow of responses through an ensemble of a namespace.

        Raises ConfigError unless the models of its steps are served and fit together.
        """
        configs = self._step_configs(config, namespace)
        check_ensemble(config, configs)
        return flow_of(config, configs)

    def _step_configs(self, config: ModelConfig, namespace: str) -> list[ModelConfig]:
        check_nesting(self._catalog, config, namespace)
        configs: list[ModelConfig] = []
        missing: list[str] = []
        causes: list[str] = []
        unmet: list[str] = []
        for number, step in enumerate(config.ensemble_steps):
            try:
                served = self._catalog.of_step(namespace, step)
                configs.append(served.config)
            except (NotFound, InvalidRequest) as error:
                model = ModelId(step.model_namespace or namespace, step.model_name)
                cause = self._reasons_not_served(model) or error.message + self._suggestion(model.name)
                causes.append(f"step {number}: {cause}")
                if not (dependency := self._unmet_dependency(model, step.model_version)):
                    missing.append(step.model_name)
                unmet.append(f"ensemble '{config.name}' depends on '{step.model_name}' {dependency}")
        if missing:
            names = ", ".join(dict.fromkeys(missing))
            raise ConfigError(
                f"ensemble {config.name} contains models that are not available or ambiguous: {names}; "
                + "; ".join(_shortened(causes))
            )
        if unmet:
            raise ConfigError("; ".join(_shortened(unmet)))
        return configs

    def _unmet_dependency(self, model: ModelId, version: int) -> str:
        """Return what an ensemble lacks of a known model, in Triton's words; "" for other models."""
        if self._catalog.served(model):
            return f"whose required version {version} is not loaded."
        failed = [
            f"version {number} is at UNAVAILABLE state: {record.reason};"
            for number, record in self._catalog.records().get(model, {}).items()
            if record.failed and not record.unread
        ]
        if not failed:
            return ""
        return f"which has no loaded version. Model '{model}' loading failed with error: {' '.join(failed)}"

    def _reasons_not_served(self, model: ModelId) -> str:
        """Return why the versions of a model are not served; "" for a served or unknown model."""
        if self._catalog.served(model):
            return ""
        records = self._catalog.records().get(model, {}).items()
        return "; ".join(f"model '{model}' version {version}: {r.reason}" for version, r in records if r.reason)

    async def _build_version(
        self,
        built: Built,
        files: ModelFiles,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        flow: Flow | None,
    ) -> None:
        served: ServedModel
        report = self._report(files, config.degraded)
        try:
            if config.is_ensemble:
                served = EnsembleModel(config, version, labels, partial(self._catalog.of_step, files.namespace), flow)
            elif isinstance(backend := await self._backends.get(config.backend), EngineBackend) and (
                backend.generates(source := self._source(files, config, version, report))
            ):
                source = replace(source, cores=self._cores(config.instance_groups[0]))
                engine = backend.engine(source)
                idle_s = idle_seconds(config, self._options.idle_unload_secs)
                engine = IdleEngine(engine, config.name, idle_s) if idle_s else engine
                served = GenerativeModel(
                    config, version, labels, engine, max_queue_size=self._options.default_max_queue_size
                )
            else:
                source = self._source(files, instance_config(config), version, report)
                instances = await asyncio.to_thread(make_instances, backend, source, self.gpus, self._cores)
                served = self._scheduler(config, version, labels, instances, files.directory)
                served.encoder = await asyncio.to_thread(open_text_encoder, config, source.version_directory)
            served.statistics.namespace = files.namespace
            served.events = ModelEvents(self.events, config.name, version)
            served.degraded = report.degradations
            if self._options.metrics.summary_latencies:
                from conch.domain.statistics.summaries import LatencySummaries  # imports a library

                served.statistics.summaries = LatencySummaries()
            if self._declared is not None:
                served.statistics.declared = RequestMetrics(
                    self._declared, ModelIdentity(config.name, files.namespace, version)
                )
            if config.response_cache:
                served.cache = await self._model_cache(files, config, served)
                if served.cache is not None:
                    served.cache.events = served.events
            load = ModelId(files.namespace, config.name)
            if isinstance(served, ScheduledModel):
                served.on_warm_up = partial(self._catalog.loads.enter, load, "warming up")
            self._catalog.loads.enter(load, "starting")
            await served.start()
            try:
                await self._check_gpu_memory(config)
            except ConchError:
                await served.stop()
                raise
        except Exception as error:
            built.failures[version] = load_error(error)
        else:
            built.served[version] = served

    async def _check_gpu_memory(self, config: ModelConfig) -> None:
        """Raise ModelLoadError if a GPU of a loaded model has less free memory than --model-load-gpu-limit leaves."""
        groups = [group for group in config.instance_groups if group.kind is InstanceKind.GPU and not group.passive]
        limits = dict(self._options.model_load_gpu_limit)
        if not any(gpu in limits for group in groups for gpu in group.gpus):
            return
        for gpu in await list_gpus():
            if gpu.used_bytes > limits.get(gpu.number, 1.0) * gpu.memory_bytes and any(
                gpu.number in group.gpus for group in groups
            ):
                raise ModelLoadError(
                    f"can not create model '{config.name}': memory limit set for GPU {gpu.number} has exceeded, model "
                    f"loading is rejected: {gpu.used_bytes / gpu.memory_bytes:.0%} are in use"
                )

    async def _model_cache(self, files: ModelFiles, config: ModelConfig, served: ServedModel) -> ModelCache | None:
        """Return the cache of a model version; None where the server has none."""
        if self._cache is None or self.store is None:
            return None if self._cache is None else ModelCache(self._cache, served.statistics)
        model = os.urandom(16)  # an ensemble changes with the models of its steps
        if not config.is_ensemble:
            labels = [output.label_filename for output in config.outputs if output.label_filename]
            model = await asyncio.to_thread(content_identity, config.document, files.directory, labels, served.version)
        return RemoteModelCache(self._cache, self.store, served.statistics, model, served.enter, served.leave)

    def _scheduler(
        self,
        config: ModelConfig,
        version: int,
        labels: Mapping[str, Sequence[str]],
        instances: Sequence[Instance],
        directory: Path,
    ) -> ScheduledModel:
        loop, room = asyncio.get_running_loop(), self._options.default_max_queue_size
        served: ScheduledModel
        if config.sequence_batching is None:
            served = BatchingModel(config, version, labels, instances, loop, max_queue_size=room)
        else:
            served = SequenceModel(config, version, labels, instances, loop, directory, max_queue_size=room)
        if self._limiter is not None:
            served.limiter = ModelLimiter(self._limiter, instances)
        return served

    def _cores(self, group: InstanceGroup, device: int = 0) -> frozenset[int]:
        """Return the cores on which instances of a group run on a device; empty for any."""
        own = f"gpu_{device}" if group.kind is InstanceKind.GPU else group.kind.value.removeprefix("KIND_").lower()
        return self._policy_cores.get(group.host_policy or own, frozenset())

    def _source(self, files: ModelFiles, config: ModelConfig, version: int, report: Report) -> ModelSource:
        settings = self._options.backend_settings(config.backend)
        return ModelSource(
            config,
            version,
            files.directory,
            settings,
            files.namespace,
            self._options.allow_native_extensions,
            files.linked,
            report,
        )


def _check_flow(config: ModelConfig, configs: Sequence[ModelConfig]) -> tuple[Flow, list[str]]:
    """Return the flow of responses through an ensemble, and warnings. Raises ConfigError."""
    check_ensemble(config, configs)
    return flow_of(config, configs), list(misfit_notices(config, configs))


def _is_current(served: ServedModel, config: ModelConfig, flow: Flow | None) -> bool:
    """Whether a served version already matches this configuration."""
    if isinstance(served, EnsembleModel) and (served.misfit or served.flow != flow):
        return False
    return _without_policy(served.config) == _without_policy(config)


def _without_policy(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration's document without the version policy, which chooses versions and changes none."""
    return {name: value for name, value in config.document.items() if name != "version_policy"}


def _with_batch_origin(config: ModelConfig) -> ModelConfig:
    """Return a configuration whose `max_batch_size` was completed, with the origin, and log it."""
    origin = "config.pbtxt has no max_batch_size"
    if config.backend == "python":
        origin += ", auto_complete_config of the model sets it"
    else:
        origin += f", the default is --backend-config={config.backend},default-max-batch-size={config.max_batch_size}"
    _log.info("max_batch_size of model '%s' is %d: %s", config.name, config.max_batch_size, origin)
    return replace(config, batch_origin=origin)


def _completing_version(files: ModelFiles) -> int:
    """Return the version that completes a configuration: the newest one that will be served."""
    try:
        return chosen_versions(files.config, files.versions_on_disk)[-1]
    except ModelLoadError:  # `build` raises it again
        return files.versions_on_disk[-1]


def _shortened(causes: Sequence[str]) -> list[str]:
    """Return the first causes, each shortened: that of an ensemble contains those of its steps."""
    shown = [
        cause if len(cause) <= _MAX_CAUSE_CHARS else f"{cause[:_MAX_CAUSE_CHARS]}…" for cause in causes[:_MAX_CAUSES]
    ]
    return [*shown, f"and {len(causes) - _MAX_CAUSES} more"] if len(causes) > _MAX_CAUSES else shown


def _same_but_configuration(files: ModelFiles, old: ModelFiles) -> bool:
    """Whether two states of a model differ at most in the configuration file."""
    new_entries, old_entries = (
        [entry for entry in state.fingerprint if not entry[0].endswith(".pbtxt")] for state in (files, old)
    )
    return new_entries == old_entries and not files.temporary and not old.temporary


def _differ_in_instances(config: ModelConfig, other: ModelConfig) -> bool:
    """Whether the instance groups of two configurations differ, and nothing else."""
    fields = config.document.keys() | other.document.keys()
    return [field for field in fields if config.document.get(field) != other.document.get(field)] == ["instance_group"]


def _with_transaction_policy(ensemble: ModelConfig, *, decoupled: bool) -> ModelConfig:
    """Return the configuration of an ensemble that is decoupled if one of its steps is, as Triton completes it."""
    if decoupled and ensemble.response_cache:
        raise ConfigError(
            f"Response Cache does not currently support model {ensemble.name} with 'decoupled' transaction policy, "
            "which it has from one of its steps. Please disable the response cache."
        )
    document = {**ensemble.document, "model_transaction_policy": {"decoupled": decoupled}}
    return replace(ensemble, decoupled=decoupled, document=document)


_CoresOf: TypeAlias = Callable[[InstanceGroup, int], frozenset[int]]


def make_instances(
    backend: Backend,
    source: ModelSource,
    gpus: Sequence[Gpu] = (),
    cores: _CoresOf = lambda _group, _device: frozenset(),
) -> list[Instance]:
    """Return every instance that the configuration requests, on `gpus` or the CPU; none is started."""
    placements = [(group, place) for group in source.config.instance_groups for place in _placements(group)]
    return [
        backend.instance(
            InstancePlan(
                replace(source_on(source, gpus, kind, device), cores=cores(group, device)),
                *(name, kind, device, len(placements), rate),
            )
        )
        for group, (name, kind, device, rate) in placements
    ]


def rearranged(
    backend: Backend,
    source: ModelSource,
    gpus: Sequence[Gpu],
    present: Iterable[Instance],
    cores: _CoresOf = lambda _group, _device: frozenset(),
) -> list[Instance]:
    """Return the instances that the configuration requests now; those of them that are `present` are reused."""
    known = {_placement_of(instance): instance for instance in present}
    return [known.get(_placement_of(instance), instance) for instance in make_instances(backend, source, gpus, cores)]


def _placement_of(instance: Instance) -> tuple[str, InstanceKind, int, RateLimit, frozenset[int]]:
    plan = instance.plan
    return plan.name, plan.kind, plan.device_id, plan.rate, plan.source.cores


def source_on(source: ModelSource, gpus: Sequence[Gpu], kind: InstanceKind, device: int) -> ModelSource:
    """Return the source with the file that `cc_model_filenames` names for the compute capability of the device."""
    if kind is not InstanceKind.GPU:
        return source
    filenames = source.config.cc_model_filenames
    capability = next(("{}.{}".format(*gpu.compute_capability) for gpu in gpus if gpu.number == device), "")
    if capability not in filenames:
        return source
    return replace(source, config=replace(source.config, default_model_filename=filenames[capability]))


def _placements(group: InstanceGroup) -> Iterator[tuple[str, InstanceKind, int, RateLimit]]:
    """Yield name, kind, device id and rate limit: `<group>_<i>`, on GPUs `count` of them on each, numbered through."""
    if group.passive:  # neither loaded nor scheduled
        return
    devices = group.gpus if group.kind is InstanceKind.GPU else (0,)
    number = 0
    for device in devices:
        for _ in range(group.count):
            yield f"{group.name}_{number}", group.kind, device, group.rate
            number += 1
