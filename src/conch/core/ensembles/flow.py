"""Which steps of an ensemble a request needs, and how responses multiply where decoupled models are among them.

A decoupled step gives any number of responses, and what takes a tensor of it runs once for each. So every step has a
level: how many decoupled steps lie before it. Tensors of lower levels are the same for all of its runs. For this to
be of one meaning, decoupled steps must follow each other: between responses of two that run side by side, nothing says
which of the one belongs to which of the other.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from conch.errors import ConfigError
from conch.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Flow:
    """The level of each step, which steps are decoupled, and the level of the ensemble's own responses."""

    levels: tuple[int, ...]
    decoupled: tuple[bool, ...]

    @property
    def depth(self) -> int:
        """How many decoupled steps there are, one after the other; 0 makes the ensemble an ordinary model."""
        return sum(self.decoupled)

    def only(self, needed: Container[int]) -> "Flow":
        """Return how responses flow through these steps alone, which need no other steps."""
        numbers = range(len(self.levels))
        levels = tuple(self.levels[number] if number in needed else -1 for number in numbers)
        return Flow(levels, tuple(self.decoupled[number] and number in needed for number in numbers))

    def steps_at(self, level: int) -> list[int]:
        """Return the numbers of the steps of a level."""
        return [number for number, at in enumerate(self.levels) if at == level]


def needed_steps(ensemble: ModelConfig) -> dict[str, frozenset[int]]:
    """Return for each output of an ensemble the numbers of the steps that must run for it."""
    steps = ensemble.ensemble_steps
    makers = {tensor: number for number, step in enumerate(steps) for tensor in step.output_map.values()}
    needed: dict[str, frozenset[int]] = {}
    for spec in ensemble.outputs:
        found: set[int] = set()
        due = [spec.name]
        while due:
            number = makers.get(due.pop())
            if number is not None and number not in found:
                found.add(number)
                due += steps[number].input_map.values()
        needed[spec.name] = frozenset(found)
    return needed


def flow_of(ensemble: ModelConfig, models: Sequence[ModelConfig]) -> Flow:
    """Return how responses flow; the graph must be without circles, `models` configure the steps.

    Raises ConfigError if two decoupled steps do not follow each other.
    """
    steps = ensemble.ensemble_steps
    decoupled = tuple(model.decoupled for model in models)
    level_of = {spec.name: 0 for spec in ensemble.inputs}
    levels: dict[int, int] = {}
    for number in _in_order(ensemble):
        step = steps[number]
        level = levels[number] = max(level_of[tensor] for tensor in step.input_map.values())
        for tensor in step.output_map.values():
            level_of[tensor] = level + decoupled[number]
    opened: dict[int, int] = {}
    for number in (number for number in range(len(steps)) if decoupled[number]):
        other = opened.setdefault(levels[number], number)
        if other != number:
            raise ConfigError(
                f"ensemble '{ensemble.name}': step {other} ('{steps[other].model_name}') and step {number} "
                f"('{steps[number].model_name}') use decoupled models side by side: nothing says which responses of "
                "the one belong to which of the other; let one of them take a tensor that comes from the other"
            )
    return Flow(tuple(levels[number] for number in range(len(steps))), decoupled)


def _in_order(ensemble: ModelConfig) -> list[int]:
    """Return the numbers of the steps such that what a step takes is made before it, in linear time."""
    known = {spec.name for spec in ensemble.inputs}
    missing = [set(step.input_map.values()) - known for step in ensemble.ensemble_steps]
    readers: dict[str, list[int]] = {}
    for number, tensors in enumerate(missing):
        for tensor in tensors:
            readers.setdefault(tensor, []).append(number)
    order = [number for number, tensors in enumerate(missing) if not tensors]
    for number in order:
        for tensor in ensemble.ensemble_steps[number].output_map.values():
            for reader in readers.get(tensor, ()):
                missing[reader].discard(tensor)
                if not missing[reader]:
                    order.append(reader)
    return order
