# Compiled by mypyc in wheels.
"""The data flow of an ensemble: the steps that an output needs, the steps that can start, and how responses multiply.

A decoupled step gives any number of responses, and a step that reads its output runs once for each. So every step has
a level: the number of decoupled steps before it. Tensors of lower levels are the same for all of its runs. Decoupled
steps must follow each other: nothing would pair the responses of two that run in parallel.
"""

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Final

from conch.base.errors import ConfigError
from conch.domain.model_config import EnsembleStep, ModelConfig, TensorSpec
from conch.domain.tensor import byte_size

# Smaller outputs are not worth the bookkeeping of memory that their reader provides.
MIN_ROOM_BYTES: Final = 2**20
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})


@dataclass(frozen=True, slots=True)
class Flow:
    """The level of each step, which steps are decoupled, and the level of the ensemble's own responses.

    `readers` has the steps with large outputs that only one other step reads: names of outputs and numbers of steps.
    """

    levels: tuple[int, ...]
    decoupled: tuple[bool, ...]
    readers: Mapping[int, Mapping[str, int]] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """The number of decoupled steps; 0 if each step gives one response."""
        return sum(self.decoupled)

    def only(self, needed: Container[int]) -> "Flow":
        """Return the flow through a subset of the steps, which needs no others."""
        numbers = range(len(self.levels))
        levels = tuple(self.levels[number] if number in needed else -1 for number in numbers)
        return Flow(levels, tuple(self.decoupled[number] and number in needed for number in numbers), self.readers)

    def steps_at(self, level: int) -> list[int]:
        """Return the numbers of the steps of a level."""
        return [number for number, at in enumerate(self.levels) if at == level]


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


def startable(steps: Sequence[EnsembleStep], numbers: Sequence[int], tensors: Container[str]) -> list[int]:
    """Return those of the steps whose input tensors are all there."""
    return [number for number in numbers if all(tensor in tensors for tensor in steps[number].input_map.values())]


def needed_steps(ensemble: ModelConfig) -> dict[str, frozenset[int]]:
    """Return for each output of an ensemble the numbers of the steps that must run for it."""
    steps = ensemble.ensemble_steps
    makers = _makers(ensemble)
    needed: dict[str, frozenset[int]] = {}
    for spec in ensemble.outputs:
        numbers: set[int] = set()
        due = [spec.name]
        while due:
            number = makers.get(due.pop())
            if number is not None and number not in numbers:
                numbers.add(number)
                due += steps[number].input_map.values()
        needed[spec.name] = frozenset(numbers)
    return needed


def flow_of(ensemble: ModelConfig, models: Sequence[ModelConfig]) -> Flow:
    """Return the flow of an ensemble; `models` are the configurations of its steps.

    Its graph has no cycle: `domain/config/validate.py` refuses others.

    Raises ConfigError if two decoupled steps do not follow each other.
    """
    steps = ensemble.ensemble_steps
    decoupled = tuple(model.decoupled for model in models)
    level_of = {spec.name: 0 for spec in ensemble.inputs}
    levels: dict[int, int] = {}
    for number in ordered_sources(ensemble):
        step = steps[number]
        level = levels[number] = max(level_of[tensor] for tensor in step.input_map.values())
        for tensor in step.output_map.values():
            level_of[tensor] = level + decoupled[number]
    opened: dict[int, int] = {}
    for number in (number for number in range(len(steps)) if decoupled[number]):
        other = opened.setdefault(levels[number], number)
        if other != number:
            raise ConfigError(
                f"in ensemble {ensemble.name}, step of model '{ensemble.name}' receives inputs originated from "
                f"different decoupled models: step {other} ('{steps[other].model_name}') and step {number} "
                f"('{steps[number].model_name}') use decoupled models in parallel, so their responses cannot be "
                "paired; make one of them read a tensor that comes from the other"
            )
    readers = {} if any(decoupled) else _sole_readers(ensemble, models)
    return Flow(tuple(levels[number] for number in range(len(steps))), decoupled, readers)


def _sole_readers(ensemble: ModelConfig, models: Sequence[ModelConfig]) -> dict[int, dict[str, int]]:
    """Return the readers of `Flow`. A step in a sequence may read an input again, so it counts as several."""
    steps = ensemble.ensemble_steps
    readers: dict[str, list[int]] = {}
    for number, step in enumerate(steps):
        for tensor in step.input_map.values():
            readers.setdefault(tensor, []).extend([number] * (1 if models[number].sequence_batching is None else 2))
    for spec in ensemble.outputs:
        readers.pop(spec.name, None)
    sole_readers: dict[int, dict[str, int]] = {}
    for number, step in enumerate(steps):
        for spec in models[number].outputs:
            reading = readers.get(step.output_map.get(spec.name, ""), ())
            if len(reading) == 1 and _is_large(spec):
                sole_readers.setdefault(number, {})[spec.name] = reading[0]
    return sole_readers


def _is_large(spec: TensorSpec) -> bool:
    # Of numbers that no model uses as indices: the reader may change them while their maker computes.
    return (
        spec.datatype in _FLOATS
        and spec.reshape is None
        and min(spec.dims, default=0) > 0
        and byte_size(spec.datatype, spec.dims) >= MIN_ROOM_BYTES
    )


def ordered_sources(ensemble: ModelConfig) -> dict[int, set[int]]:
    """Return for each step those whose tensors it reads, after all of which it stands."""
    makers = _makers(ensemble)
    sources = {
        number: {makers[tensor] for tensor in step.input_map.values() if tensor in makers}
        for number, step in enumerate(ensemble.ensemble_steps)
    }
    return {number: sources[number] for number in TopologicalSorter(sources).static_order()}


def _makers(ensemble: ModelConfig) -> dict[str, int]:
    """Return the number of the step that makes each tensor."""
    return {
        tensor: number for number, step in enumerate(ensemble.ensemble_steps) for tensor in step.output_map.values()
    }
