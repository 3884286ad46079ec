"""All rules, in the order of the reference page `docs/check.md`."""

from conch.check import deployment_rules, language_rules, python_rules, repository_rules
from conch.check.finding import Rule

FAMILIES: dict[str, tuple[Rule, ...]] = {
    "Repositories": repository_rules.RULES,
    "Python models": python_rules.RULES,
    "Language models": language_rules.RULES,
    "Scripts, images and charts beside a repository": deployment_rules.RULES,
}
RULES: tuple[Rule, ...] = tuple(rule for rules in FAMILIES.values() for rule in rules)
