"""All rules of `conch check`, in the order of the reference page `docs/check.md`."""

from conch.check.finding import Rule
from conch.check.rules import deployment as deployment_rules
from conch.check.rules import kubernetes as kubernetes_rules
from conch.check.rules import language as language_rules
from conch.check.rules import monitoring as monitoring_rules
from conch.check.rules import python as python_rules
from conch.check.rules import repository as repository_rules

FAMILIES: dict[str, tuple[Rule, ...]] = {
    "Repositories": repository_rules.RULES,
    "Python models": python_rules.RULES,
    "Language models": language_rules.RULES,
    "Scripts, images, compose files and Terraform": deployment_rules.RULES,
    "Manifests of Kubernetes and Helm charts": kubernetes_rules.RULES,
    "Alerts, dashboards, monitors, limits and autoscalers": monitoring_rules.RULES,
}
RULES: tuple[Rule, ...] = tuple(rule for rules in FAMILIES.values() for rule in rules)

# Rules for a package that is missing → the rules that are not applied without it.
MISSING_PACKAGES: dict[Rule, tuple[Rule, ...]] = {
    monitoring_rules.MONITORING_UNCHECKED: (
        *(*kubernetes_rules.RULES, *monitoring_rules.RULES, repository_rules.FILE_SYNTAX),
        *(deployment_rules.COMPOSE_GPU, deployment_rules.COMPOSE_INVALID, deployment_rules.CONFIG_ELSEWHERE),
        *(deployment_rules.IMAGE_LATEST, deployment_rules.SECRET_TEXT),
    ),
    kubernetes_rules.SCHEMA_UNCHECKED: (kubernetes_rules.MANIFEST_INVALID,),
    kubernetes_rules.CHART_UNRENDERED: (*kubernetes_rules.RULES, *monitoring_rules.RULES),
}
