"""What the frontends need of the server: one value, which the composition root makes."""

from dataclasses import dataclass, field
from functools import cached_property

from conch.base.logs import LogSettings
from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.access.authorization import Access
from conch.protocols.access.restrictions import http_restrictions, secret_headers
from conch.protocols.connections.body_budget import DEFAULT_LIMIT_BYTES, BodyBudget
from conch.protocols.http.reply import Explain
from conch.protocols.regions import NO_REGIONS, Regions
from conch.server.core.inference import Inference
from conch.server.core.loading.model_manager import ModelManager
from conch.server.core.shared_memory.regions import SharedMemory
from conch.server.frontends.offload.pool import OffloadPool
from conch.server.frontends.openai.batches.runner import BatchRunner
from conch.server.frontends.openai.chat import ChatPrompts
from conch.server.frontends.openai.ignored_fields import IgnoredFields
from conch.server.frontends.request_headers import Tenants
from conch.server.limits.manager import LimitManager
from conch.server.observability.event_log import EventRecorder
from conch.server.observability.event_reading import EventReader
from conch.server.observability.incidents.incidents import Incidents
from conch.server.observability.metrics.families import Metrics
from conch.server.observability.tracing.observer import Observer
from conch.server.options.server_options import ServerOptions


@dataclass(frozen=True)
class Parts:
    """Parts of the server that its frontends share.

    `codecs` are worker processes that read and write large messages, `prompts` those that render chat templates;
    `metrics` are those of the server, `limits` the limits of requests per second; both may be missing. `recorder`
    writes the event log, `events` reads it, and `explain` finds in it where the time of a call went; both are None
    without one. A frontend process has `named_regions` in the place of `shared_memory`.
    """

    options: ServerOptions
    inference: Inference
    control: ModelManager
    shared_memory: SharedMemory | None = None
    observer: Observer = field(default_factory=Observer)
    log: LogSettings = field(default_factory=LogSettings)
    budget: BodyBudget = field(default_factory=lambda: BodyBudget(DEFAULT_LIMIT_BYTES))
    codecs: OffloadPool = field(default_factory=lambda: OffloadPool("codec"))
    prompts: ChatPrompts = field(default_factory=ChatPrompts)
    metrics: Metrics | None = None
    keys: ApiKeys = field(default_factory=ApiKeys)
    limits: LimitManager | None = None
    batches: BatchRunner | None = None
    events: EventReader | None = None
    explain: Explain | None = None
    recorder: EventRecorder = field(default_factory=EventRecorder)
    incidents: Incidents | None = None
    ignored_fields: IgnoredFields = field(default_factory=IgnoredFields)
    named_regions: Regions = NO_REGIONS

    @property
    def regions(self) -> Regions:
        """The regions that requests may name; none without shared memory."""
        return self.shared_memory or self.named_regions

    @cached_property
    def http_access(self) -> Access:
        """Which clients may call what over HTTP. Raises ConfigError."""
        return Access(http_restrictions(self.options.http_restricted_api), self.keys)

    @property
    def models_are_public(self) -> bool:
        """Whether all clients may list the models, so that errors may name them."""
        return not self.http_access.restricts("metadata")

    @cached_property
    def secret_headers(self) -> frozenset[str]:
        """Names of the headers that hold the secrets of restricted APIs."""
        return secret_headers(self.options.http_restricted_api, self.options.grpc_restricted_protocol)

    @cached_property
    def tenants(self) -> Tenants:
        """Finds the tenants of requests."""
        return Tenants(self.options.limits_tenant_header, self.keys, self.secret_headers)
