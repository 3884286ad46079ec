"""`conch rules prove`: which alerts of a user can fire, and why others cannot."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from conch.base.command_line.files import read_text
from conch.base.errors import InvalidRequest
from conch.base.yaml_documents import YamlError, load_documents
from conch.domain.metrics.catalog import all_metrics
from conch.machine.cores import usable_cores
from conch.operate.monitoring.promql import Node, metric_names
from conch.operate.monitoring.rules.analysis import AnalysedRule, analyse_rules
from conch.operate.monitoring.rules.known_metrics import TARGET_LABELS, MetricTable
from conch.operate.monitoring.rules.rule import InputSeries
from conch.operate.monitoring.rules.shipped_alerts import rule_groups
from conch.operate.monitoring.rules.thresholds import Thresholds
from conch.operate.monitoring.rules.user_rules import UserRule, read_rules
from conch.operate.monitoring.rules.witness import Witness, expand_records, first_witness, proof_search, witness_search

_MAX_TIMEOUT_S = 120
INSTALL = "promtool is not on PATH; install it with apt-get install prometheus, or from https://prometheus.io/download/"


def find_promtool() -> str | None:
    """Return the path of promtool; None if it is not installed."""
    return shutil.which("promtool")


class PromtoolTimeout(Exception):
    """promtool did not end in time."""


def run_tests(promtool: str, rules: Any, tests: dict[str, Any], timeout_s: float = _MAX_TIMEOUT_S) -> tuple[bool, str]:
    """Run a test file, which names its rule file `rules.yml`; return success and the output.

    Raises PromtoolTimeout.
    """
    with tempfile.TemporaryDirectory(prefix="conch-rules-") as name:
        folder = Path(name)
        # JSON is YAML, and is written a hundred times faster.
        (folder / "rules.yml").write_text(json.dumps(rules, default=str), encoding="utf-8")
        (folder / "tests.yml").write_text(json.dumps(tests), encoding="utf-8")
        try:
            result = subprocess.run(
                [promtool, "test", "rules", "tests.yml"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=max(min(timeout_s, _MAX_TIMEOUT_S), 0.01),
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PromtoolTimeout(f"promtool did not end within {error.timeout:.3g} s") from None
        return result.returncode == 0, result.stdout + result.stderr


_LINE_INTERVAL_S = 5


@contextmanager
def proof_progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with the name of each rule that is done. Writes to stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_writer(total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda name: progress.update(task, advance=1, description=name)


def _line_writer(total: int) -> Callable[[str], None]:
    done, written_s = 0, time.monotonic()

    def advance(name: str) -> None:
        nonlocal done, written_s
        done += 1
        if done < total and time.monotonic() - written_s >= _LINE_INTERVAL_S:
            written_s = time.monotonic()
            print(f"{done} of {total} rules proved, {name} last", file=sys.stderr, flush=True)

    return advance


Verdict: TypeAlias = Literal["fires", "never fires", "wrong", "doubtful", "invalid", "not found", "not searched", "ok"]
# Errors of series that are tried: those of a rule's targets may be unique.
_OF_SERIES = ("matching labels must be unique", "must ensure unique matches", "duplicate series", "same labelset")
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
    verdict: Verdict
    witness: tuple[InputSeries, ...] | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    """What a search found. `refusal` is why promtool refuses the rule."""

    witness: Witness | None = None
    refusal: str = ""
    timed_out: bool = False


def prove(given: Namespace) -> int:
    """Prove the rules of files; print a table or JSON; return 1 if a rule never fires or is wrong.

    Raises InvalidRequest for a file that cannot be read or has no rules.
    """
    known = frozenset(given.metric)
    table = MetricTable(all_metrics(), TARGET_LABELS | frozenset(given.target_label), known, optional_counters=False)
    promtool = None if given.no_search else find_promtool()
    files = [(path, analyse_rules(_rules(path), table, given.scrape_interval)) for path in given.files]
    prover = _Prover(table, promtool, given.time_limit)
    tasks = [(path, rule, analysed) for path, analysed in files for rule in analysed]
    with ThreadPoolExecutor(given.jobs or usable_cores()) as pool, proof_progress(len(tasks)) as advance:
        # Threads wait for processes of promtool, which do the work.
        futures = [pool.submit(prover.prove, *task) for task in tasks]
        try:
            for future in as_completed(futures):
                advance(future.result().analysed.rule.name)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    proved = [future.result() for future in futures]
    if given.json:
        print(json.dumps([_document(rule) for rule in proved], indent=2))
    else:
        _print(proved)
        if promtool is None and not given.no_search:
            print(f"No series were searched: {INSTALL}")
    return int(any(rule.verdict in ("never fires", "wrong", "invalid") for rule in proved))


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


class _Prover:
    def __init__(self, table: MetricTable, promtool: str | None, limit_s: float) -> None:
        self._table, self._promtool, self._limit_s = table, promtool, limit_s

    def prove(self, path: Path, analysed: AnalysedRule, others: Sequence[AnalysedRule]) -> ProvedRule:
        """Return a rule with its verdict."""
        verdicts = {problem.verdict for problem in analysed.problems}
        if analysed.tree is None:
            return ProvedRule(path, analysed, "invalid")
        if "never" in verdicts:
            return ProvedRule(path, analysed, "never fires" if analysed.rule.is_alert else "wrong")
        if not analysed.rule.is_alert:
            return ProvedRule(path, analysed, "wrong" if "wrong" in verdicts else "doubtful" if verdicts else "ok")
        if self._promtool is None:
            verdict: Verdict = "wrong" if "wrong" in verdicts else "doubtful" if verdicts else "not searched"
            return ProvedRule(path, analysed, verdict)
        outcome = self._search(analysed, others, self._promtool)
        witness = None if outcome.witness is None else outcome.witness.series
        if "wrong" in verdicts:
            return ProvedRule(path, analysed, "wrong", witness, outcome.refusal)
        if outcome.refusal:
            return ProvedRule(path, analysed, "invalid", None, outcome.refusal)
        if outcome.witness is not None and outcome.witness.infinite:
            detail = "the series that were tried fire it only by a division by zero"
            return ProvedRule(path, analysed, "doubtful", witness, detail)
        if verdicts:
            return ProvedRule(path, analysed, "doubtful", witness)
        detail = f"the search ended after {self._limit_s:g} s (--time-limit)" if outcome.timed_out else ""
        return ProvedRule(path, analysed, "not found" if witness is None else "fires", witness, detail)

    def _search(self, analysed: AnalysedRule, others: Sequence[AnalysedRule], promtool: str) -> _Found:
        """Search for series that fire an alert."""
        rule = analysed.rule
        trees: dict[str, Node] = {
            other.rule.name: other.tree for other in others if not other.rule.is_alert and other.tree is not None
        }
        assert analysed.tree is not None
        needed = _needed(analysed.tree, trees)
        documents = [other.rule.document for other in others if other.rule.name in needed]
        rules = {"groups": [{"name": "proof", "rules": [*documents, rule.document]}]}
        shipped = [alert for group in rule_groups(Thresholds()) for alert in group.alerts if alert.name == rule.name]
        searches = (
            *(proof_search(alert, "rules.yml") for alert in shipped),
            witness_search(rule, expand_records(analysed.tree, trees), self._table, "rules.yml"),
        )
        ends_s = time.monotonic() + self._limit_s
        infinite: Witness | None = None
        for batch in (batch for search in searches for batch in search.batches()):
            try:
                passed, output = run_tests(promtool, rules, batch.document, ends_s - time.monotonic())
            except PromtoolTimeout:
                return _Found(infinite, timed_out=True)
            witness = first_witness(batch, output)
            if witness is not None and not witness.infinite:
                return _Found(witness)
            infinite = infinite or witness
            if not passed and witness is None and not any(error in output for error in _OF_SERIES):
                # A failure without a test that fired is an error of the rule itself.
                return _Found(refusal=output.strip().splitlines()[-1])
        return _Found(infinite)


def _needed(tree: Node, trees: dict[str, Node]) -> set[str]:
    needed: set[str] = set()
    unread = [tree]
    while unread:
        new = (metric_names(unread.pop()) & trees.keys()) - needed
        needed |= new
        unread += [trees[name] for name in new]
    return needed


def _print(proved: Sequence[ProvedRule]) -> None:
    table = Table("rule", "verdict", "why", box=None, pad_edge=False, header_style="bold")
    for result in proved:
        rule = result.analysed.rule
        name = f"{rule.name}\n{result.path}:{rule.line}"
        table.add_row(name, Text(result.verdict, _STYLES.get(result.verdict, "")), _why(result), end_section=True)
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
        lines += [f"fires with {series.series} {_shortened(series.values)}" for series in proved.witness]
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
            {"verdict": problem.verdict, "code": problem.code, "message": problem.message, "offset": problem.offset}
            for problem in proved.analysed.problems
        ],
        "witness": [{"series": series.series, "values": series.values} for series in proved.witness or ()],
        "unchecked": list(proved.analysed.unchecked),
        **({"detail": proved.detail} if proved.detail else {}),
    }
