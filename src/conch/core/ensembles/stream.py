"""One request on its way through an ensemble with decoupled steps, or with a limit at its steps.

Each response of a decoupled step opens a branch, in which the steps behind it run once. A branch sees the tensors of
the branches that it grew from. Branches run side by side; their responses leave in the order in which they were opened,
first by the outermost one, so that the order is that of the models that made them and does not depend on timing.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING

from conch.core.ensembles.flow import Flow
from conch.core.ensembles.slots import StepSlots
from conch.core.ensembles.step import (
    SequencePosition,
    StageTensor,
    StepTimes,
    ensemble_error,
    ensemble_response,
    given_tensors,
    step_position,
    step_request,
    take_outputs,
    with_origins,
)
from conch.core.pending import Pending, State
from conch.core.served_model import ServedModel
from conch.errors import ConchError, Unavailable
from conch.model_config import EnsembleStep
from conch.request import InferRequest, InferResponse, Respond

if TYPE_CHECKING:
    from conch.core.ensembles.ensemble_model import EnsembleModel

# What a request may hold of responses of its decoupled steps that later ones have not dealt with, in bytes. A model
# that sends cannot be stopped, and one request must not take all memory.
_MOST_HELD = 2**30


class _Branch:
    """What follows one response of a decoupled step; the first branch follows the request itself."""

    __slots__ = ("branches", "due", "level", "own", "running", "size", "tensors", "waiting")

    def __init__(self, level: int, waiting: Sequence[int], own: dict[str, StageTensor]) -> None:
        self.level = level
        self.waiting = list(waiting)  # steps that have not been started, nor wait for a place
        self.due = len(waiting)  # steps that have not ended
        self.running: dict[int, Pending] = {}
        self.own = own
        self.tensors: ChainMap[str, StageTensor] = ChainMap(own)
        self.branches: list[_Branch] = []  # in the order of their responses, until theirs have been sent
        self.size = 0  # of the response that opened it, in bytes

    def all(self) -> Iterator["_Branch"]:
        """Yield it and all that grow from it, in order."""
        yield self
        for branch in self.branches:
            yield from branch.all()


class StreamRun:
    """One admitted request and all that runs for it."""

    def __init__(
        self,
        ensemble: "EnsembleModel",
        request: InferRequest,
        respond: Respond,
        models: Sequence[ServedModel],
        flow: Flow,
        slots: Sequence[StepSlots],
    ) -> None:
        """Assign. `models` are those of the steps; `slots` are theirs too, none if there is no limit."""
        self.pending = Pending(request, respond, self)
        self.pending.state = State.EXECUTING
        self.pending.on_cancel(self._cancel_steps)
        request.timeline.queued = request.timeline.started = monotonic_ns()
        self.times = StepTimes()
        self._ensemble = ensemble
        self._models = models
        self._flow = flow
        self._slots = slots
        self._root = _Branch(0, flow.steps_at(0), given_tensors(request, ensemble.config))
        self._held = 0  # bytes

    @property
    def running(self) -> Iterable[Pending]:
        """The requests of the steps that have been started and have not ended."""
        return [inner for branch in self._root.all() for inner in branch.running.values()]

    def settled(self, _pending: Pending, answer: InferResponse | ConchError | None, _was: State) -> None:
        """Called by the pending request when it ends, however it ends."""
        self._ensemble.count(self.pending, self.times, answer)
        if isinstance(answer, ConchError):
            for slots in self._slots:
                slots.forget(self)
        for model in self._models:
            model.leave()

    def advance(self) -> None:
        """Start every step whose tensors are there; answer what is complete."""
        self._advance(self._root)
        self._deliver()

    def _advance(self, root: _Branch) -> None:
        for branch in list(root.all()):
            for number in [number for number in branch.waiting if self._can_start(branch, number)]:
                if self.pending.cancelled:  # a step before this one could not be started
                    return
                branch.waiting.remove(number)
                if self._slots:
                    self._slots[number].take(self, partial(self._start, branch, number))
                else:
                    self._start(branch, number)

    def _can_start(self, branch: _Branch, number: int) -> bool:
        return all(tensor in branch.tensors for tensor in self._step(number).input_map.values())

    def _step(self, number: int) -> EnsembleStep:
        return self._ensemble.config.ensemble_steps[number]

    def _start(self, branch: _Branch, number: int) -> None:
        step = self._step(number)
        position = step_position(self.pending.request, step, branch.tensors)
        inner = step_request(self.pending.request, step, branch.tensors, position)
        try:
            answered = partial(self._answered, branch, number, inner, position)
            pending = self._models[number].submit_within(self.pending.request.span, inner, answered)
        except ConchError as error:
            if self._slots:
                self._slots[number].give_back()
            self._fail(number, error)
            return
        if not pending.cancelled:  # by a step of its own, if it is an ensemble
            branch.running[number] = pending
        try:
            if inner.caller is not None:
                inner.caller.check()
        except ConchError as error:
            self._fail(number, error)

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
            self.times.add(inner.timeline)
        try:
            if self._flow.decoupled[number]:
                if answer is not None and answer.outputs:
                    self._open(branch, number, answer, position)
            elif answer is None:
                raise ConchError("the model gave no response")
            else:
                take_outputs(self._step(number), answer, position, branch.own)
                self._advance(branch)
        except ConchError as error:
            self._fail(number, error)
        self._deliver()

    def _open(self, parent: _Branch, number: int, answer: InferResponse, position: SequencePosition) -> None:
        """Let a response of a decoupled step flow on. Raises ConchError if it cannot."""
        own: dict[str, StageTensor] = {}
        take_outputs(self._step(number), answer, position, own)
        branch = _Branch(parent.level + 1, self._flow.steps_at(parent.level + 1), own)
        branch.tensors = ChainMap(own, *parent.tensors.maps)
        branch.size = sum(made.tensor.nbytes for made in own.values() if made.tensor is not None)
        self._held += branch.size
        if self._held > _MOST_HELD:
            raise Unavailable(
                f"model '{self._step(number).model_name}' sends faster than the steps behind it take: "
                f"more than {_MOST_HELD >> 20} MiB of its responses to one request were waiting for them"
            )
        parent.branches.append(branch)
        self._advance(branch)

    def _deliver(self) -> None:
        """Send what is complete, in order; end the request with the last of it."""
        while not self.pending.cancelled:
            path = [self._root]
            while path[-1].branches:
                path.append(path[-1].branches[0])
            branch = path[-1]
            response: InferResponse | None = None
            if branch.due:
                return
            if branch.level == self._flow.depth:
                response = self._response(branch)
                if response is None:
                    return
                if not any(one.due or len(one.branches) > 1 for one in path):
                    # No other will follow: as in Triton, it is the final one itself, however its model has ended.
                    self.pending.finish(response)
                    return
            if len(path) == 1:
                self.pending.finish(None)
                return
            path[-2].branches.pop(0)
            self._held -= branch.size
            if response is not None:
                self.pending.send(response)

    def _response(self, branch: _Branch) -> InferResponse | None:
        request, config = self.pending.request, self._ensemble.config
        names = request.outputs or [spec.name for spec in config.outputs]
        if not all(name in branch.tensors for name in names):  # a step of an outer branch is still at it
            return None
        return ensemble_response(request, config, self._ensemble.version, branch.tensors)

    def _fail(self, number: int, error: ConchError) -> None:
        """End with a step's error, told where it happened, and cancel the other steps and the rest of this one."""
        step = self._step(number)
        message = self._ensemble.located(step, with_origins(self._ensemble.config, step, error))
        self.pending.finish(ensemble_error(message, error))
        self._cancel_steps()

    def _cancel_steps(self) -> None:
        for inner in list(self.running):
            inner.cancel("another step of the ensemble failed, or the request was cancelled")
