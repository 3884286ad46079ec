"""`conch replay`: run what a bundle recorded again, in a simulation or on a server, and compare.

Compared are latencies of requests, and which requests were executed together.
"""

import json
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.option_types import count, duration
from conch.base.control_characters import printable
from conch.base.errors import ConchError, InvalidRequest
from conch.base.http.credentials import KEY_HELP
from conch.domain.events.layout import OUTCOMES
from conch.domain.events.log import EventLog

if TYPE_CHECKING:
    from conch.domain.events.bundle import Bundle
    from conch.measure.incidents.stand_in import StandInChange


PERCENTILES = (50, 95, 99)
_OK = OUTCOMES.index("ok")


@dataclass(frozen=True)
class ReplayRun:
    """One model's requests in a recording or a replay, which are known by their place in the order of arrival."""

    latency_s: NDArray[np.float64]  # of the calls of successful ones
    requests: int
    failed: int
    batches: Sequence[frozenset[int]]  # places of their requests, in the order of forming

    def percentiles(self) -> dict[str, float | None]:
        """Return P50, P95 and P99 in seconds, None without a successful request."""
        if not len(self.latency_s):
            return dict.fromkeys((f"p{value}" for value in PERCENTILES), None)
        times = np.percentile(self.latency_s, PERCENTILES)
        return {f"p{value}": float(time) for value, time in zip(PERCENTILES, times, strict=True)}


def run_of(log: EventLog, model: str, after_ns: int = 0) -> ReplayRun:
    """Return what a log has of the requests to a model that were received after a time."""
    rows = log.requests
    number = log.names.index(model) if model in log.names else -1
    rows = rows[(rows["model"] == number) & (rows["received"] > after_ns) & (rows["outcome"] != 0)]
    rows = rows[np.argsort(rows["received"], kind="stable")]
    succeeded = rows[rows["outcome"] == _OK]
    began, ended = log.call_times(succeeded)
    return ReplayRun((ended - began) / 1e9, len(rows), len(rows) - len(succeeded), _batches(log, rows))


def _batches(log: EventLog, rows: NDArray[Any]) -> list[frozenset[int]]:
    formed = dict(zip(log.batches["number"].tolist(), log.batches["formed"].tolist(), strict=True))
    members: dict[int, set[int]] = {}
    for place, batch in enumerate(rows["batch"].tolist()):
        if batch in formed:
            members.setdefault(batch, set()).add(place)
    return [frozenset(members[batch]) for batch in sorted(members, key=lambda batch: formed[batch])]


@dataclass(frozen=True)
class ReplayComparison:
    """A model's recording beside its replay."""

    model: str
    recorded: ReplayRun
    replayed: ReplayRun

    @property
    def equal_batches(self) -> float:
        """The share of recorded batches that have the same requests in the replay; 1 without batches."""
        again, recorded = set(self.replayed.batches), self.recorded.batches
        return sum(batch in again for batch in recorded) / len(recorded) if recorded else 1.0

    @property
    def has_same_sequence(self) -> bool:
        """Whether all batches are the same, in the same order."""
        return list(self.recorded.batches) == list(self.replayed.batches)

    def document(self) -> dict[str, Any]:
        """Return the comparison as JSON values; times are seconds."""
        return {
            "model": self.model,
            **{
                name: {
                    "requests": run.requests,
                    "failed": run.failed,
                    **{f"{key}_s": time for key, time in run.percentiles().items()},
                    "batches": len(run.batches),
                    "mean_batch": sum(map(len, run.batches)) / len(run.batches) if run.batches else None,
                }
                for name, run in (("recorded", self.recorded), ("replayed", self.replayed))
            },
            "equal_batches": self.equal_batches,
            "same_sequence": self.has_same_sequence,
        }


_FAILURE: Final = 1
SIMULATION, STAND_IN = "simulation", "stand-in"
_EVENT_LOG_BYTES: Final = 1 << 30  # of servers on this machine: some millions of requests
_END_S: Final = 60.0  # of the log that is read after the last request
_DESCRIPTION = """\
Run the requests of an incident bundle again at their recorded times, and compare latencies and batches. A simulation
takes seconds and is exact: it makes Conch's decisions with the recorded durations. A stand-in is a server on this
machine whose models take as long as the recorded ones did. Servers get the inputs that the bundle has, else random
values of the recorded shapes, and prompts with the recorded numbers of tokens.
"""


def replay(arguments: Sequence[str]) -> int:
    """Print the comparison; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    given = _parser().parse_args(arguments)
    try:
        return _replay(given)
    except (ConchError, ConnectionError, RuntimeError) as error:
        print(f"conch replay: {printable(str(error))}", file=sys.stderr)
    except KeyboardInterrupt:
        return 130
    return _FAILURE


def _replay(given: Namespace) -> int:
    from conch.domain.events.bundle import Bundle
    from conch.measure.incidents.live_replay import client_models

    bundle = Bundle.read(given.file)
    for text in bundle.missing:
        print(f"conch replay: {printable(text)}", file=sys.stderr)
    models = given.model or client_models(bundle.log)
    if not models:
        raise InvalidRequest(f"'{given.file}' has no requests")
    if unknown := [model for model in models if model not in bundle.log.names]:
        raise InvalidRequest(f"'{given.file}' has no request to model '{unknown[0]}'")
    replays = _Replay(given, bundle, models)
    comparisons = list(replays.simulated() if given.on == SIMULATION else replays.live())
    if not comparisons:
        raise InvalidRequest("none of the models can be replayed here")
    if given.json:
        document = {"file": str(given.file), "on": given.on, "speed": given.speed, "missing": list(bundle.missing)}
        print(json.dumps({**document, "models": [comparison.document() for comparison in comparisons]}, indent=2))
    else:
        _print(comparisons)
    return 0


@dataclass(frozen=True)
class _Replay:
    given: Namespace
    bundle: "Bundle"
    models: Sequence[str]

    @property
    def configs(self) -> dict[str, Mapping[str, Any]]:
        """The recorded configurations by the names of their models."""
        documents = [entry.get("config") for entry in self.bundle.models.values() if isinstance(entry, dict)]
        return {str(config.get("name")): config for config in documents if isinstance(config, dict)}

    def simulated(self) -> "Iterator[ReplayComparison]":
        """Yield the comparison of each model with its simulation. Raises ConchError."""
        import numpy as np

        from conch.measure.twin.forecast import Change
        from conch.measure.twin.replay import simulate

        log, given = self.bundle.log, self.given
        change = Change(instances=given.instances, max_batch_size=given.max_batch_size, delay_us=given.delay_us)
        for model in self.models:
            if self._leaves_out(model):
                continue
            try:
                replayed = simulate(log, model, change, documents=self.configs, factor=given.speed)
            except ConchError as error:
                self._skip(model, error.message)
                continue
            rows = log.requests
            rows = rows[(rows["model"] == log.names.index(model)) & (rows["received"] > 0) & (rows["outcome"] != 0)]
            order = rows["number"][np.argsort(rows["received"], kind="stable")].tolist()
            places = {number: place for place, number in enumerate(order)}
            batches = [
                frozenset(places[number] for number in batch.members if number in places)
                for batch in replayed.batches
                if batch.model == model
            ]
            latency_s = np.array([replayed.latency[number] for number in order if number in replayed.latency]) / 1e9
            failed = len(order) - len(latency_s)
            yield ReplayComparison(model, run_of(log, model), ReplayRun(latency_s, len(order), failed, batches))

    def live(self) -> "Iterator[ReplayComparison]":
        """Send the requests to a server; yield the comparison of each model. Raises ConchError, ConnectionError."""
        from conch.measure.incidents.live_replay import LiveReplay, arrivals_of
        from conch.measure.incidents.stand_in import refusal, write_clock_shift
        from conch.measure.why.source import fetch_log

        given, log = self.given, self.bundle.log
        models = []
        for model in self.models:
            if given.on == STAND_IN and self._leaves_out(model):
                continue
            if given.on == STAND_IN and (why := refusal(log, model, self.configs)):
                self._skip(model, why)
            else:
                models.append(model)
        if not models:
            return
        rows = arrivals_of(log, models)
        length_s = int(rows["received"][-1] - rows["received"][0]) / 1e9 / given.speed
        same = given.on == STAND_IN and self._change.is_none
        with self._server(models) as (url, repository):
            live = LiveReplay(url, log, models, given.speed, self.bundle.requests, for_stand_ins=same)
            begun = fetch_log(url, 0, given.api_key_file).monotonic_ns
            print(f"conch replay: sending {len(rows):,} requests in {length_s:.0f} s to {url}", file=sys.stderr)
            measured = live.send(
                (lambda start_ns: write_clock_shift(repository, start_ns - live.first_ns)) if same else None
            )
            for message, number in measured.errors[:3]:
                print(f"conch replay: {number:,} requests failed: {printable(message)}", file=sys.stderr)
            replayed = fetch_log(url, length_s + _END_S, given.api_key_file)
        if replayed.overrun_before > begun:
            print("conch replay: rows of the server's event log were overwritten meanwhile", file=sys.stderr)
        for model in models:
            yield ReplayComparison(model, run_of(log, model), run_of(replayed, model, begun))

    def _leaves_out(self, model: str) -> bool:
        """Whether a model is left out because neither a simulation nor a stand-in, so changed, can have it."""
        from conch.measure.incidents.live_replay import is_language_model

        given = self.given
        changed = (given.instances, given.max_batch_size, given.delay_us) != (None, None, None)
        why = ""
        if is_language_model(self.bundle.log, model):
            why = "it is a language model, whose steps are not simulated; give a URL or a folder that has it"
        elif changed and self.configs.get(model, {}).get("ensemble_scheduling"):
            why = "it is an ensemble, which has no such setting; conch whatif changes one of its steps (--stage)"
        if why:
            self._skip(model, why)
        return bool(why)

    def _skip(self, model: str, why: str) -> None:
        """Say why a model is left out. Raises InvalidRequest if it was asked for by name."""
        message = f"model '{model}' cannot be replayed on {self.given.on}: {why}"
        if self.given.model:
            raise InvalidRequest(message)
        print(f"conch replay: {printable(message)}", file=sys.stderr)

    @property
    def _change(self) -> "StandInChange":
        from conch.measure.incidents.stand_in import StandInChange

        given = self.given
        return StandInChange(given.instances, given.max_batch_size, given.delay_us, given.speed)

    @contextmanager
    def _server(self, models: Sequence[str]) -> "Iterator[tuple[str, Path]]":
        """Yield the URL of the server, and the repository of one that is started here."""
        given = self.given
        if given.on != STAND_IN:
            changes = ("instances", "max_batch_size", "delay_us")
            if changed := [name for name in changes if getattr(given, name) is not None]:
                flag = changed[0].removesuffix("_us").replace("_", "-")
                raise InvalidRequest(f"--{flag} is for --on simulation and --on stand-in; change the server itself")
            if not Path(given.on).is_dir():
                yield given.on if "://" in given.on else f"http://{given.on}", Path()
                return
        from conch.base.process.local_server import local_server
        from conch.measure.incidents.stand_in import write_stand_ins

        with TemporaryDirectory(prefix="conch-replay-") as folder:
            repository = Path(given.on)
            if given.on == STAND_IN:
                repository = Path(folder) / "models"
                write_stand_ins(repository, self.bundle.log, self.configs, models, self._change)
            flags = (f"--model-repository={repository}", f"--event-log-bytes={_EVENT_LOG_BYTES}")
            with local_server(Path(folder) / "server.log", *flags) as url:
                yield url, repository


def _print(comparisons: "Sequence[ReplayComparison]") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None)
    for name in ("model", "", "requests", "failed", "P50", "P95", "P99", "batches", "mean"):
        table.add_column(name, justify="left" if name in ("model", "") else "right")
    for comparison in comparisons:
        for label, run in (("recorded", comparison.recorded), ("replayed", comparison.replayed)):
            times = ["-" if time is None else f"{time * 1000:.3g} ms" for time in run.percentiles().values()]
            mean = f"{sum(map(len, run.batches)) / len(run.batches):.2f}" if run.batches else "-"
            name = escape(printable(comparison.model)) if label == "recorded" else ""
            table.add_row(name, label, f"{run.requests:,}", f"{run.failed:,}", *times, f"{len(run.batches):,}", mean)
    console = Console(highlight=False)
    console.print(table)
    for comparison in comparisons:
        if not comparison.recorded.batches:
            continue
        same = "the same batches in the same order" if comparison.has_same_sequence else "the same requests in a batch"
        name = escape(printable(comparison.model))
        console.print(f"{name}: {same}: {comparison.equal_batches:.1%} of the recorded batches")


def _speed(text: str) -> float:
    try:
        factor = float(text.removeprefix("x").removeprefix("×"))
    except ValueError:
        factor = 0.0
    if not 1e-3 <= factor <= 1e3:
        raise ArgumentTypeError(f"'{text}' is not a factor such as 2 or 0.5")
    return factor


def _delay(text: str) -> int:
    return round(duration(text) * 1e6)


def _parser() -> CommandParser:
    parser = CommandParser("conch replay", description=_DESCRIPTION)
    parser.add_argument("file", type=Path, metavar="FILE", help="incident bundle")
    parser.add_argument(
        "--on",
        default=SIMULATION,
        metavar="WHERE",
        help="simulation (default), stand-in, URL of a server, or folder of a model repository, which is served",
    )
    parser.add_argument(
        "--model", action="append", help="only this model; repeatable (default: all that clients called)"
    )
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="X", help="X times as fast (default: 1)")
    parser.add_argument("--instances", type=count, metavar="N", help="with N instances")
    parser.add_argument("--max-batch-size", type=count, metavar="N", help="with batches of up to N")
    parser.add_argument(
        "--delay", type=_delay, dest="delay_us", metavar="TIME", help="with this delay for batches, as 500us"
    )
    parser.add_argument("--api-key-file", metavar="FILE", help=KEY_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
