# Compiled by mypyc in wheels.
"""Calls of models to other models (BLS), and the detection of deadlocks among them.

A model that calls keeps its instance while it waits, so calls can deadlock: each waits for an instance that another of
them keeps. Requests of clients cannot. The call that would close such a cycle is rejected: every cycle has one, and
when it starts to wait, all others of the cycle are known.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from conch.base.errors import ConchError, InvalidRequest, NotFound, Unavailable, Unsupported
from conch.domain.request import InferRequest, InferResponse, Respond, tenant_of
from conch.domain.scheduling.waiting import State
from conch.server.backends.base import Instance, ModelSource
from conch.server.backends.bls import BlsCaller
from conch.server.core.catalog import Catalog
from conch.server.core.ensembles.ensemble_run import EnsembleRun
from conch.server.core.inference import Inference
from conch.server.core.loading.model_manager import ModelManager
from conch.server.core.pending import Pending
from conch.server.core.scheduling.scheduled_model import ScheduledModel
from conch.server.repository.namespaces import ModelId

# Of a version: those of 64 bits.
_MAX_VERSION_DIGITS: Final = 18


class RunningBlsCall:
    """One call, from its submission to its last response."""

    __slots__ = ("_calls", "_ended", "_respond", "callee", "caller", "pending")

    def __init__(self, calls: "BlsCalls", caller: BlsCaller, callee: str, respond: Respond) -> None:
        self.caller = caller
        self.callee = callee
        self.pending: Pending | None = None
        self._calls = calls
        self._respond = respond
        self._ended = False

    def respond(self, answer: InferResponse | ConchError | None, final: bool) -> None:
        """Deliver a response to the caller."""
        if final:
            self._ended = True
            self.release_instance()
            # Breaks the cycle of request and call, so that large tensors are freed with the last response.
            self.pending = None
        self._respond(answer, final)

    def admitted(self, pending: Pending) -> None:
        """Record the admitted request, which may have ended already."""
        if not self._ended:
            self.pending = pending
            self.check()

    def check(self) -> None:
        """Reject the call if it is deadlocked. To be called whenever it begins to wait."""
        if self.pending is None:
            return
        cycle = self._calls.cycle(self)
        if not cycle:
            return
        holder = self._calls.resource_holder(self)
        why = f"{' → '.join(cycle)}, and every instance of '{self.callee}' waits for its own calls; "
        remedy = f"more instances of '{self.callee}' (instance_group, count) allow such calls"
        if holder:
            why = f"it needs resources of the rate limiter that model '{holder}' keeps until it is answered; "
            remedy = "more of them (--rate-limit-resource) allow such calls"
        call = f"the call of model '{self.caller.model}' to model '{self.callee}'"
        self.pending.abort(Unavailable(f"{call} can only wait for itself: {why}{remedy}"))

    def cancel(self) -> None:
        """End it with an error."""
        if self.pending is not None:
            self.pending.cancel("the call was cancelled")

    def release_instance(self) -> None:
        """Record that the caller's instance no longer waits for the call."""
        self._calls.forget(self)


class BlsCalls:
    """The calls that models may make; see `backends.bls.ModelCalls`.

    `control` returns the manager, which loads models; `started` returns whether the load at start has ended and no
    stop has begun.
    """

    def __init__(
        self,
        catalog: Catalog,
        inference: Inference,
        control: Callable[[], ModelManager],
        *,
        started: Callable[[], bool],
    ) -> None:
        self._catalog = catalog
        self._inference = inference
        self._control = control
        self._started = started
        self._holding: dict[Instance, list[RunningBlsCall]] = {}  # instances, and the calls for which they wait

    def call(self, caller: BlsCaller, request: InferRequest, respond: Respond, *, many: bool) -> RunningBlsCall:
        """Submit a request; see `ModelCalls`. Raises as `Inference.infer`, and Unsupported."""
        try:
            served = self._catalog.find_from(caller.namespace, request.model_name, request.version)
        except (NotFound, Unavailable) as error:
            raise NotFound(
                f"Failed for execute the inference request. Model '{request.model_name}' is not ready. {error.message}"
            ) from error
        if served.config.decoupled and not many:
            raise Unsupported(
                f"Model {request.model_name} is using the decoupled. The current BLS request call doesn't support "
                "models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                "'async_exec' calls for decoupled models.'"
            )
        request.timeline.deadline = _deadline(caller)
        if self._inference.limiter is not None:
            request.meter = self._inference.admit_call(served, request.timeline, _tenant(caller))
        call = RunningBlsCall(self, caller, request.model_name, respond)
        if caller.holds is not None:
            self._holding.setdefault(caller.holds, []).append(call)
        request.caller = call
        request.parent = caller.executions[0].request.number if caller.executions else 0
        try:
            pending = served.submit_within(caller.span, request, call.respond)
        except BaseException:
            self.forget(call)
            raise
        call.admitted(pending)
        return call

    def forget(self, call: RunningBlsCall) -> None:
        """Remove a call from those for which its instance waits."""
        instance = call.caller.holds
        calls = self._holding.get(instance) if instance is not None else None
        if instance is not None and calls is not None and call in calls:
            calls.remove(call)
            if not calls:
                del self._holding[instance]

    async def load(self, name: str, config: str, files: Mapping[str, bytes], waiting: ModelSource | None) -> None:
        """Load a model; see `ModelCalls`. Raises ModelLoadError, Unavailable."""
        if not self._started():
            raise Unavailable("models cannot be loaded or unloaded while the server starts or stops")
        await self._control().load(name, config or None, files, _model_id(waiting))

    async def unload(self, name: str, unload_dependents: bool, waiting: ModelSource | None) -> None:
        """Unload a model; see `ModelCalls`. Raises ModelLoadError, Unavailable."""
        if not self._started():
            raise Unavailable("models cannot be loaded or unloaded while the server starts or stops")
        await self._control().unload(name, unload_dependents, _model_id(waiting))

    async def ready(self, name: str, version: str, namespace: str) -> bool:
        """Whether a model is ready. Raises InvalidRequest for a version that is not a number."""
        if version and not (version.isdecimal() and len(version) <= _MAX_VERSION_DIGITS):
            raise InvalidRequest(
                f"failed to get model version from specified version string '{version[:100]}' (details: stol), version "
                "should be an integral value > 0"
            )
        return await self._inference.model_ready(name, int(version) if version else None, namespace)

    # ── deadlocks ──

    def cycle(self, call: RunningBlsCall) -> list[str]:
        """Return the models of the cycle in which a call waits for itself, in the order of calls; [] without one."""
        if call.pending is None or not self._is_blocked(call.pending):
            return []
        stuck = self._stuck()
        if call not in stuck:
            return []
        path = [call]
        while True:
            waits_for = self._waits_for(path[-1], stuck)
            if waits_for is None or waits_for in path:
                break
            path.append(waits_for)
        names = [call.caller.model, *(waiting.callee for waiting in path)]
        if len(names) > 2 and names[0] == names[-1]:
            names = [*names[1:], names[1]]  # in the order of the calls
        return names[: next((at for at, name in enumerate(names) if name in names[:at]), len(names)) + 1]

    def resource_holder(self, call: RunningBlsCall) -> str:
        """Return the model that holds the resources for which a deadlocked call waits; "" if it waits for none."""
        for part in () if call.pending is None else _parts(call.pending):
            if part.state is State.QUEUED and isinstance(part.owner, ScheduledModel):
                for instance in part.owner.instances:
                    holder = _blocker(part.owner, instance, self._holding.__contains__)
                    if holder is not None and instance not in self._holding:
                        return holder.plan.source.config.name
        return ""

    def _is_blocked(self, request: Pending) -> bool:
        """Whether all instances that could execute a request wait for calls: a cheap test, rarely true."""
        return any(
            part.state is State.QUEUED
            and isinstance(part.owner, ScheduledModel)
            and all(
                instance in self._holding or _blocker(part.owner, instance, self._holding.__contains__) is not None
                for instance in part.owner.instances
            )
            for part in _parts(request)
        )

    def _stuck(self) -> set[RunningBlsCall]:
        """Return all calls that wait only for each other."""
        stuck = {call for calls in self._holding.values() for call in calls}
        while True:
            moving = {call for call in stuck if self._waits_for(call, stuck) is None}
            if not moving:
                return stuck
            stuck -= moving

    def _waits_for(self, call: RunningBlsCall, stuck: set[RunningBlsCall]) -> RunningBlsCall | None:
        """Return one of the `stuck` calls if this one cannot end before they do."""
        for request in () if call.pending is None else _parts(call.pending):
            if request.state is State.EXECUTING:
                own_calls = [
                    running
                    for calls in self._holding.values()
                    for running in calls
                    if request in running.caller.executions
                ]
                blocker = _first(own_calls, stuck)
            else:
                blocker = self._waits_for_instance(request, stuck)
            if blocker is not None:
                return blocker
        return None

    def _waits_for_instance(self, request: Pending, stuck: set[RunningBlsCall]) -> RunningBlsCall | None:
        model = request.owner
        if not isinstance(model, ScheduledModel):
            return None
        blocker: RunningBlsCall | None = None
        for instance in model.instances:
            # An instance that is restarting will recover, and one without calls will become free.
            blocker = self._first_held(instance, stuck) if instance.ready else None
            if blocker is None and instance.ready:
                blocker = self._waits_for_resources(model, instance, stuck)
            if blocker is None:
                return None
        return blocker

    def _waits_for_resources(
        self, model: ScheduledModel, instance: Instance, stuck: set[RunningBlsCall]
    ) -> RunningBlsCall | None:
        """Return one of the `stuck` calls if their instances hold resources that this one needs to execute."""
        holder = _blocker(model, instance, lambda other: self._first_held(other, stuck) is not None)
        return None if holder is None else self._first_held(holder, stuck)

    def _first_held(self, instance: Instance, stuck: set[RunningBlsCall]) -> RunningBlsCall | None:
        """Return one of the `stuck` calls that executions on the instance wait for."""
        return _first(self._holding.get(instance, ()), stuck)


def _model_id(source: ModelSource | None) -> ModelId | None:
    return None if source is None else ModelId(source.namespace, source.config.name)


def _blocker(model: ScheduledModel, instance: Instance, stuck: Callable[[Instance], bool]) -> Instance | None:
    return None if model.limiter is None else model.limiter.blocker(instance, stuck)


def _first(calls: Iterable[RunningBlsCall], stuck: set[RunningBlsCall]) -> RunningBlsCall | None:
    # An execution needs the responses to all of its calls, so it waits as long as any of them does.
    return next((call for call in calls if call in stuck), None)


def _parts(pending: Pending) -> Iterator[Pending]:
    """Yield the requests that a request waits for: itself, or those of the running steps of an ensemble."""
    owner = pending.owner
    if isinstance(owner, ScheduledModel):
        yield pending
    elif isinstance(owner, EnsembleRun):
        for step in owner.running:
            yield from _parts(step)


def _tenant(caller: BlsCaller) -> str:
    """Return the tenant of the requests for which a model makes a call; "" if they have different ones, or none."""
    tenants = {tenant_of(execution.request.meter) for execution in caller.executions}
    return tenants.pop() if len(tenants) == 1 else ""


def _deadline(caller: BlsCaller) -> int:
    """Return until when a call of a model is of use: the latest deadline of its requests, 0 if one of them has none."""
    deadlines = [execution.request.timeline.deadline for execution in caller.executions]
    return max(deadlines) if deadlines and all(deadlines) else 0
