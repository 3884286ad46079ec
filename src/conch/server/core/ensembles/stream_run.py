# Compiled by mypyc in wheels.
"""The run of a request through an ensemble with decoupled steps, or with `max_inflight_requests`.

Each response of a decoupled step opens a branch, in which the following steps run once. A branch reads the tensors of
its parent branches. Branches run concurrently; their responses are sent in the order in which the branches were opened,
by the outermost branch first, so that the order is that of the models and does not depend on timing.

As in Triton, `max_inflight_requests` bounds the requests in flight at each step, over all requests of the ensemble. A
model that sends responses cannot be paused, so what it sends faster than the next step processes waits for a slot.
"""

from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from conch.base.errors import ConchError, Unavailable
from conch.domain.model_config import ModelConfig
from conch.domain.request import InferRequest, InferResponse, Respond
from conch.server.core.ensembles.ensemble_run import CountRun, EnsembleRun
from conch.server.core.ensembles.flow import Flow
from conch.server.core.ensembles.step import (
    SequencePosition,
    StageTensor,
    given_tensors,
    take_outputs,
)
from conch.server.core.pending import Pending, State
from conch.server.core.served_model import ServedModel

# Responses of decoupled steps that one request may hold for later steps. A model that sends cannot be paused, and one
# request must not take all memory.
_MAX_HELD_BYTES: Final = 2**30


class StepSlots:
    """The slots of one step. A run that takes one gives it back when the step has ended."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()
        self._starting = False

    def __repr__(self) -> str:
        return f"<StepSlots {self._free} free, {len(self._waiting)} waiting>"

    def take(self, owner: object, start: Callable[[], None]) -> None:
        """Call `start` when a slot is free, at once or after the earlier waiters."""
        self._waiting.append((owner, start))
        self._start()

    def give_back(self) -> None:
        """Return a slot."""
        self._free += 1
        self._start()

    def forget(self, owner: object) -> None:
        """Remove the waiters of an owner."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not owner)

    def _start(self) -> None:
        # Re-entrant: a step that is started may end at once and return its slot; the loop below takes the next one.
        if self._starting:
            return
        self._starting = True
        try:
            while self._free and self._waiting:
                self._free -= 1
                self._waiting.popleft()[1]()
        finally:
            self._starting = False


class _Branch:
    """The steps that follow one response of a decoupled step; the root branch follows the request itself."""

    __slots__ = ("branches", "due", "level", "own", "running", "size", "tensors", "waiting")

    def __init__(self, level: int, waiting: Sequence[int], own: dict[str, StageTensor]) -> None:
        self.level = level
        self.waiting = list(waiting)  # steps that neither have been started nor wait for a slot
        self.due = len(waiting)  # steps that have not ended
        self.running: dict[int, Pending] = {}
        self.own = own
        self.tensors: ChainMap[str, StageTensor] = ChainMap(own)
        self.branches: list[_Branch] = []  # in the order of their responses, until those have been sent
        self.size = 0  # bytes of the response that opened it

    def all(self) -> Iterator["_Branch"]:
        """Yield this branch and all below it, in order."""
        yield self
        for branch in self.branches:
            yield from branch.all()


class StreamRun(EnsembleRun):
    """A run that gives any number of responses."""

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
    ) -> None:
        """Begin the request. `slots` are the slots of the steps, empty without a limit."""
        super().__init__(config, version, request, respond, models, count)
        self._flow = flow
        self._slots = slots
        self._root = _Branch(0, flow.steps_at(0), given_tensors(request, config))
        self._held = 0  # bytes

    @property
    def running(self) -> Iterable[Pending]:
        return [inner for branch in self._root.all() for inner in branch.running.values()]

    def settled(self, pending: Pending, answer: InferResponse | ConchError | None, previous: State) -> None:
        if isinstance(answer, ConchError):
            for slots in self._slots:
                slots.forget(self)
        super().settled(pending, answer, previous)

    def advance(self) -> None:
        self._advance(self._root)
        self._deliver()

    def _advance(self, root: _Branch) -> None:
        for branch in list(root.all()):
            for number in [number for number in branch.waiting if self._can_start(number, branch.tensors)]:
                if self.pending.cancelled:  # a step before this one could not be started
                    return
                branch.waiting.remove(number)
                if self._slots:
                    self._slots[number].take(self, partial(self._start, branch, number))
                else:
                    self._start(branch, number)

    def _start(self, branch: _Branch, number: int) -> None:
        submitted = self._submit(number, branch.tensors, branch.running, partial(self._answered, branch))
        if not submitted and self._slots:
            self._slots[number].give_back()

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
                if answer is not None and answer.outputs:
                    self._open(branch, number, answer, position)
            elif answer is None:
                raise ConchError("the model gave no response")
            else:
                take_outputs(self._steps[number], answer, position, branch.own)
                self._advance(branch)
        except ConchError as error:
            self._fail(number, error)
        self._deliver()

    def _open(self, parent: _Branch, number: int, answer: InferResponse, position: SequencePosition) -> None:
        """Open the branch of a response of a decoupled step. Raises ConchError."""
        own: dict[str, StageTensor] = {}
        take_outputs(self._steps[number], answer, position, own)
        branch = _Branch(parent.level + 1, self._flow.steps_at(parent.level + 1), own)
        branch.tensors = ChainMap(own, *parent.tensors.maps)
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
            path = [self._root]
            while path[-1].branches:
                path.append(path[-1].branches[0])
            branch = path[-1]
            response: InferResponse | None = None
            if branch.due:
                return
            if branch.level == self._flow.depth:
                response = self._response_of(branch)
                if response is None:
                    return
                if not any(outer.due or len(outer.branches) > 1 for outer in path):
                    # The last one: as in Triton it is final itself, without an empty response after it.
                    self.pending.finish(response)
                    return
            if len(path) == 1:
                self.pending.finish(None)
                return
            path[-2].branches.pop(0)
            self._held -= branch.size
            if response is not None:
                self.pending.send(response)

    def _response_of(self, branch: _Branch) -> InferResponse | None:
        names = self.pending.request.outputs or [spec.name for spec in self._config.outputs]
        if not all(name in branch.tensors for name in names):  # a step of an outer branch has not ended
            return None
        return self._response(branch.tensors)
