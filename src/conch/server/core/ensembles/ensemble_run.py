# Compiled by mypyc in wheels.
"""One request on its way through an ensemble: the steps that run for it, its responses and its end.

Each response of a decoupled step opens a branch, in which the following steps run once. A branch reads the tensors of
its parent branches. Branches run concurrently; their responses are sent in the order in which the branches were opened,
by the outermost branch first, so that the order is that of the models and does not depend on timing. Without decoupled
steps there is only the root branch, whose end is the response.

As in Triton, `max_inflight_requests` bounds the requests in flight at each step, over all requests of the ensemble. A
model that sends responses cannot be paused, so what it sends faster than the next step processes waits for a slot.
"""

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic_ns
from typing import Final, TypeAlias

from conch.base.errors import ConchError, Unavailable
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, InferResponse, Respond, Room
from conch.domain.scheduling.flow import Flow, StepSlots, startable
from conch.domain.scheduling.waiting import State
from conch.server.core.ensembles.step import (
    SequencePosition,
    Stage,
    StageTensor,
    StepTimes,
    ensemble_response,
    given_tensors,
    step_failure,
    step_position,
    step_request,
    take_outputs,
)
from conch.server.core.pending import Pending
from conch.server.core.served_model import ServedModel
from conch.server.observability.event_log import ModelEvents

# Counts a request that has ended, with the times of its steps.
CountRun: TypeAlias = Callable[[Pending, StepTimes, InferResponse | ConchError | None], None]

# Responses of decoupled steps that one request may hold for later steps. A model that sends cannot be paused, and one
# request must not take all memory.
_MAX_HELD_BYTES: Final = 2**30


class _Branch:
    """The steps that follow one response of a decoupled step; the root branch follows the request itself."""

    __slots__ = ("branches", "due", "level", "own", "running", "scopes", "size", "tensors", "waiting")

    def __init__(
        self, level: int, waiting: list[int], own: dict[str, StageTensor], parent: "_Branch | None" = None
    ) -> None:
        self.level = level
        self.waiting = waiting  # steps that neither have been started nor wait for a slot
        self.due = len(waiting)  # steps that have not ended
        self.running: dict[int, Pending] = {}
        self.own = own
        self.scopes: list[dict[str, StageTensor]] = [own] if parent is None else [own, *parent.scopes]
        self.tensors: Stage = own if parent is None else ChainMap(*self.scopes)
        self.branches: list[_Branch] = []  # in the order of their responses, until those have been sent
        self.size = 0  # bytes of the response that opened it

    def all(self) -> "list[_Branch]":
        """Return this branch and all below it, in order."""
        return [self, *[inner for branch in self.branches for inner in branch.all()]]


class EnsembleRun:
    """One admitted request, which owns the requests of its steps."""

    def __init__(
        self,
        config: ModelConfig,
        version: int,
        request: InferRequest,
        respond: Respond,
        models: Sequence[ServedModel],
        count: CountRun,
        flow: Flow,
        slots: Sequence[StepSlots],
        events: ModelEvents | None = None,
    ) -> None:
        """Begin the request. `models` are those of the steps, which the run leaves when it ends.

        `slots` are the slots of the steps, empty without a limit.
        """
        self.pending = Pending(request, respond, self, events)
        self.pending.state = State.EXECUTING
        self.pending.on_cancel(self._cancel_steps)
        request.timeline.queued = request.timeline.started = monotonic_ns()
        self._config = config
        self._version = version
        self._steps = config.ensemble_steps
        self._models = models
        self._count = count
        self._times = StepTimes()
        self._flow = flow
        self._depth = flow.depth
        self._slots = slots
        self._root = _Branch(0, flow.steps_at(0), given_tensors(request, config))
        self._held = 0  # bytes

    @property
    def running(self) -> Iterable[Pending]:
        """The requests of the steps that have been started and have not ended."""
        return [inner for branch in self._root.all() for inner in branch.running.values()]

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:  # noqa: ARG002
        """Count the request, and release the models of its steps."""
        if isinstance(answer, ConchError):
            for slots in self._slots:
                slots.forget(self)
        self._count(pending, self._times, answer)
        for model in self._models:
            model.leave()

    def advance(self) -> None:
        """Start every step whose tensors are there; answer what is complete."""
        self._advance(self._root)
        self._deliver()

    def _advance(self, root: _Branch) -> None:
        for branch in root.all() if root.branches else [root]:
            if not branch.waiting:
                continue
            numbers = startable(self._steps, branch.waiting, branch.tensors)
            # Before the first is started, which may end at once and advance this branch.
            branch.waiting = [number for number in branch.waiting if number not in numbers]
            for number in numbers:
                if self.pending.cancelled:  # a step before this one could not be started
                    return
                if self._slots:
                    self._slots[number].take(self, partial(self._start, branch, number))
                else:
                    self._start(branch, number)

    def _start(self, branch: _Branch, number: int) -> None:
        """Send the request of a step. One that is refused ends the run."""
        request, step, model = self.pending.request, self._steps[number], self._models[number]
        position = step_position(request, step, branch.tensors)
        inner = step_request(request, step, model.config, branch.tensors, position)
        inner.parent = request.number
        readers = self._flow.readers.get(number)
        if readers is not None and model.cache is None:
            inner.rooms = self._rooms(readers)
        if request.meter is not None:  # tokens count towards the limits that the ensemble's request counts towards
            inner.meter = request.meter.stage(model.config.name, str(model.version))
        try:
            answered = partial(self._answered, branch, number, inner, position)
            pending = model.submit_within(request.span, inner, answered)
        except ConchError as error:
            self._fail(number, error)
            if self._slots:
                self._slots[number].give_back()
            return
        if not pending.cancelled:  # it may have ended already, if it is an ensemble
            branch.running[number] = pending
        if inner.caller is not None:
            inner.caller.check()

    def _rooms(self, readers: Mapping[str, int]) -> Mapping[str, Room] | None:
        """Return the memory for outputs of the models that read them, where these have one."""
        rooms = {}
        for name, reader in readers.items():
            room = self._models[reader].input_room
            if room is not None:
                rooms[name] = room
        return rooms or None

    def _answered(
        self,
        branch: _Branch,
        number: int,
        inner: InferRequest,
        position: SequencePosition,
        answer: InferResponse | ConchError | None,
        final: bool,
    ) -> None:
        if final:
            branch.running.pop(number, None)
            branch.due -= 1
            if self._slots:
                self._slots[number].give_back()
        if self.pending.cancelled:
            return
        if isinstance(answer, ConchError):
            self._fail(number, answer)
            return
        if final:
            self._times.add(inner.timeline)
        try:
            if self._flow.decoupled[number]:
                if answer is not None:
                    self._open(branch, number, answer, position)
            elif answer is None:
                raise ConchError("the model gave no response")
            else:
                take_outputs(self._steps[number], self._models[number].config, answer, position, branch.own)
                self._advance(branch)
        except ConchError as error:
            self._fail(number, error)
        self._deliver()

    def _open(self, parent: _Branch, number: int, answer: InferResponse, position: SequencePosition) -> None:
        """Open the branch of a response of a decoupled step. Raises ConchError."""
        own: dict[str, StageTensor] = {}
        take_outputs(self._steps[number], self._models[number].config, answer, position, own)
        branch = _Branch(parent.level + 1, self._flow.steps_at(parent.level + 1), own, parent)
        branch.size = sum(made.tensor.nbytes for made in own.values() if made.tensor is not None)
        self._held += branch.size
        if self._held > _MAX_HELD_BYTES:
            raise Unavailable(
                f"model '{self._steps[number].model_name}' sends faster than the following steps "
                f"process: more than {_MAX_HELD_BYTES >> 20} MiB of its responses to one request were waiting"
            )
        parent.branches.append(branch)
        self._advance(branch)

    def _deliver(self) -> None:
        """Send the responses that are complete, in order; end the request with the last one."""
        while not self.pending.cancelled:
            branch = self._root
            path = [branch]
            while branch.branches:
                branch = branch.branches[0]
                path.append(branch)
            if branch.due:
                return
            response: InferResponse | None = None
            if branch.level == self._depth:
                response = self._response_of(branch)
                if response is None:
                    return
            if len(path) == 1 or (
                response is not None and not any(outer.due or len(outer.branches) > 1 for outer in path)
            ):
                # As in Triton the last response is final itself, without an empty one after it.
                self.pending.finish(response)
                return
            path[-2].branches.pop(0)
            self._held -= branch.size
            if response is not None:
                self.pending.send(response)

    def _response_of(self, branch: _Branch) -> InferResponse | None:
        if branch is not self._root:
            names = self.pending.request.outputs or [spec.name for spec in self._config.outputs]
            if not all(name in branch.tensors for name in names):  # a step of an outer branch has not ended
                return None
        return ensemble_response(self.pending.request, self._config, self._version, branch.tensors)

    def _fail(self, number: int, error: ConchError) -> None:
        """End the request with the error of a step, and cancel the other steps."""
        self.pending.finish(step_failure(self._config, self._steps[number], error))
        self._cancel_steps()

    def _cancel_steps(self) -> None:
        for inner in list(self.running):
            inner.cancel("another step of the ensemble failed, or the request was cancelled")
