"""Apply rules: the option taken, its reason, and why the others were not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from conch.measure.advise.conditions import Situation, holds
from conch.measure.advise.rules import AdviceRule, Option

MEASURED = "measured"
"""In place of a rule's name, where measurements decided."""


@dataclass(frozen=True, slots=True)
class Reason:
    """An option, the rule that speaks for or against it, and its words."""

    option: Option
    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class AdviceDecision:
    """The option taken; None if all are excluded or none was recommended."""

    chosen: Reason | None
    excluded: tuple[Reason, ...]
    alternatives: tuple[Reason, ...]  # recommended by a later rule


def decide(rules: Sequence[AdviceRule], situation: Situation) -> AdviceDecision:
    """Evaluate all rules."""
    held = [rule for rule in rules if holds(rule.when, situation)]
    excluded = _first_of_each(rule for rule in held if rule.excludes)
    impossible = {reason.option for reason in excluded}
    possible = _first_of_each(rule for rule in held if not rule.excludes and rule.option not in impossible)
    return AdviceDecision(possible[0] if possible else None, tuple(excluded), tuple(possible[1:]))


def _first_of_each(rules: Iterable[AdviceRule]) -> list[Reason]:
    found: dict[Option, Reason] = {}
    for rule in rules:
        found.setdefault(rule.option, Reason(rule.option, rule.name, f"{rule.reason} [{rule.source}]"))
    return list(found.values())
