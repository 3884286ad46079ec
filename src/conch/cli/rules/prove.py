"""`conch rules prove`: which alerts of a user can fire, and why others cannot."""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conch.cli.rules.promtool import INSTALL, find_promtool, run_tests
from conch.cli.text_files import read_text
from conch.errors import InvalidRequest
from conch.metric_catalog.catalog import all_metrics
from conch.monitoring.promql import Node, metric_names
from conch.monitoring.rules.analysis import AnalysedRule, analyse_rules
from conch.monitoring.rules.groups import rule_groups
from conch.monitoring.rules.known_metrics import TARGET_LABELS, MetricTable
from conch.monitoring.rules.rule import InputSeries
from conch.monitoring.rules.thresholds import Thresholds
from conch.monitoring.rules.user_rules import UserRule, read_rules
from conch.monitoring.rules.witness import expand_records, first_witness, proof_search, witness_search
from conch.monitoring.yaml_documents import YamlError, load_documents

_UNWRAPPED = 160  # columns of a file or a pipe
_STYLES = {
    "fires": "green",
    "never fires": "bold red",
    "wrong": "bold red",
    "doubtful": "yellow",
    "invalid": "bold red",
}


@dataclass(frozen=True, slots=True)
class ProvedRule:
    """A rule of a file with its verdict, and series that fire it, if they were found.

    The series are () if the alert fires without any.
    """

    path: Path
    analysed: AnalysedRule
    verdict: Literal["fires", "never fires", "wrong", "doubtful", "invalid", "not found", "not searched", "ok"]
    witness: tuple[InputSeries, ...] | None = None
    detail: str = ""


def prove(given: Namespace) -> int:
    """Prove the rules of files; print a table or JSON; return 1 if a rule never fires or is wrong.

    Raises InvalidRequest for a file that cannot be read or has no rules.
    """
    table = MetricTable(all_metrics(), TARGET_LABELS | frozenset(given.target_label))
    promtool = None if given.no_search else find_promtool()
    files = [(path, analyse_rules(_rules(path), table, given.scrape_interval)) for path in given.files]
    proved: list[ProvedRule] = []
    total = sum(len(analysed) for _, analysed in files)
    # The status is shown on a terminal only.
    with Console(stderr=True).status("") as status:
        for path, analysed in files:
            for each in analysed:
                status.update(f"{len(proved) + 1} of {total}: {each.rule.name}")
                proved.append(_proved(path, each, analysed, table, promtool))
    if given.json:
        print(json.dumps([_document(each) for each in proved], indent=2))
    else:
        _print(proved)
        if promtool is None and not given.no_search:
            print(f"No series were searched: {INSTALL}")
    return int(any(each.verdict in ("never fires", "wrong", "invalid") for each in proved))


def _rules(path: Path) -> list[UserRule]:
    """Return the rules of a file. Raises InvalidRequest."""
    try:
        documents = load_documents(read_text(path))
    except YamlError as error:
        raise InvalidRequest(f"{path}:{error.line}: {error}") from None
    rules = [rule for document in documents for rule in read_rules(document)]
    if not rules:
        raise InvalidRequest(f"{path} has no rules (groups, or a PrometheusRule): there is nothing to prove")
    return rules


def _proved(
    path: Path, analysed: AnalysedRule, others: Sequence[AnalysedRule], table: MetricTable, promtool: str | None
) -> ProvedRule:
    verdicts = {problem.verdict for problem in analysed.problems}
    if analysed.tree is None:
        return ProvedRule(path, analysed, "invalid")
    if "never" in verdicts:
        return ProvedRule(path, analysed, "never fires" if analysed.rule.is_alert else "wrong")
    if not analysed.rule.is_alert:
        return ProvedRule(path, analysed, "wrong" if "wrong" in verdicts else "doubtful" if verdicts else "ok")
    witness, detail = _search(analysed, others, table, promtool) if promtool else (None, "")
    if "wrong" in verdicts:
        return ProvedRule(path, analysed, "wrong", witness, detail)
    if detail:
        return ProvedRule(path, analysed, "invalid", None, detail)
    if verdicts:
        return ProvedRule(path, analysed, "doubtful", witness)
    if promtool is None:
        return ProvedRule(path, analysed, "not searched")
    return ProvedRule(path, analysed, "not found" if witness is None else "fires", witness)


def _search(
    analysed: AnalysedRule, others: Sequence[AnalysedRule], table: MetricTable, promtool: str
) -> tuple[tuple[InputSeries, ...] | None, str]:
    """Return series that fire an alert, and why promtool refuses it."""
    records: dict[str, AnalysedRule] = {each.rule.name: each for each in others if not each.rule.is_alert and each.tree}
    trees: dict[str, Node] = {name: each.tree for name, each in records.items() if each.tree is not None}
    assert analysed.tree is not None
    tree = expand_records(analysed.tree, trees)
    needed = [each.rule.document for each in others if each.rule.name in _needed(analysed.tree, trees)]
    rules = {"groups": [{"name": "proof", "rules": [*needed, analysed.rule.document]}]}
    shipped = [each for group in rule_groups(Thresholds()) for each in group.alerts if each.name == analysed.rule.name]
    searches = (
        witness_search(analysed.rule.name, tree, analysed.rule.for_s, table, "rules.yml"),
        *(proof_search(each, "rules.yml") for each in shipped),
    )
    for search in filter(None, searches):
        passed, output = run_tests(promtool, rules, search.document)
        if (witness := first_witness(search, output)) is not None:
            return witness, ""
        if not passed:
            # A failure without a test that fired is an error of the rule itself.
            return None, output.strip().splitlines()[-1]
    return None, ""


def _needed(tree: Node, trees: dict[str, Node]) -> set[str]:
    found: set[str] = set()
    unread = [tree]
    while unread:
        new = (metric_names(unread.pop()) & trees.keys()) - found
        found |= new
        unread += [trees[name] for name in new]
    return found


def _print(proved: Sequence[ProvedRule]) -> None:
    table = Table("rule", "verdict", "why", box=None, pad_edge=False, header_style="bold")
    for each in proved:
        rule = each.analysed.rule
        name = f"{rule.name}\n{each.path}:{rule.line}"
        table.add_row(name, Text(each.verdict, _STYLES.get(each.verdict, "")), _why(each), end_section=True)
    Console(highlight=False, width=None if sys.stdout.isatty() else _UNWRAPPED).print(table)


def _why(proved: ProvedRule) -> str:
    lines = list(dict.fromkeys(problem.message for problem in proved.analysed.problems))
    if proved.detail:
        lines.append(proved.detail)
    if proved.verdict == "not found":
        lines.append("none of the series that were tried fire it; write a test for promtool to be sure")
    if proved.witness == ():
        lines.append("fires without any series")
    elif proved.witness:
        lines += [f"fires with {each.series} {_shortened(each.values)}" for each in proved.witness]
    if proved.analysed.unchecked:
        lines.append(f"not in Conch's catalogue, so not checked: {', '.join(proved.analysed.unchecked)}")
    return "\n".join(lines)


def _shortened(values: str) -> str:
    return values if len(values) <= 60 else f"{values[:57]}…"


def _document(proved: ProvedRule) -> dict[str, Any]:
    rule = proved.analysed.rule
    return {
        "file": str(proved.path),
        "line": rule.line,
        "rule": rule.name,
        "verdict": proved.verdict,
        "problems": [
            {"verdict": each.verdict, "code": each.code, "message": each.message, "offset": each.offset}
            for each in proved.analysed.problems
        ],
        "witness": [{"series": each.series, "values": each.values} for each in proved.witness or ()],
        "unchecked": list(proved.analysed.unchecked),
        **({"detail": proved.detail} if proved.detail else {}),
    }
