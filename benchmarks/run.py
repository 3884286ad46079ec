"""The command line: `python -m benchmarks.run [--quick] [--only NAME] [--rounds N] [--json FILE]`."""

import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.load import missing_programs
from benchmarks.harness.machine import CHECKOUT, machine
from benchmarks.harness.measure import Bench, Schedule
from benchmarks.harness.peers import Conch, Peer, Triton
from benchmarks.harness.report import markdown, summary, table, write_json
from benchmarks.harness.triton_install import TritonInstall
from benchmarks.harness.workloads import Work, all_works

FULL = Schedule(rounds=7, seconds=3, warm_up_seconds=2)
QUICK = Schedule(rounds=2, seconds=1, warm_up_seconds=1)
PEERS = ("triton", "conch")
TABLE_COLUMNS = 240


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(help="Works of this name or beginning, as in ensemble or identity-grpc-16; repeatable."),
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help="Measure only this server: triton or conch.")] = None,
    quick: Annotated[bool, typer.Option(help="Two short rounds, to see that all works run.")] = False,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of each work.")] = None,
    seconds: Annotated[int | None, typer.Option(min=1, help="Seconds of load in each round.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all figures of all rounds to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown, too.")] = False,
) -> None:
    """Compare Conch with Triton 2.51 and print the ratios. The exit status is 1 when a work failed."""
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_COLUMNS
    # As Ctrl-C does, so that no server is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    measured_on = machine()
    works = _chosen(all_works(), only)
    peers = _peers(console, peer)
    usual = QUICK if quick else FULL
    schedule = Schedule(rounds or usual.rounds, seconds or usual.seconds, usual.warm_up_seconds)
    results = []
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as directory, console.status("start") as status:
        measuring = Bench(peers, schedule, Path(directory), status.update)
        for result in measuring.run(works):
            results.append(result)
            done = f"{len(results)} of {len(works)}"
            console.print(
                f"{result.work} ({done})" if result.error is None else f"{result.work}: {escape(result.error)}"
            )
    console.print(table(results))
    console.print(summary(results), soft_wrap=True)
    versions = {peer.name: f"{measuring.versions.get(peer.name, '?')} with {peer.packages()}" for peer in peers}
    for name, value in {**measured_on, **versions}.items():
        console.print(f"{name}: {value}", style="dim", soft_wrap=True)
    if as_markdown:
        console.print(markdown(results), markup=False, soft_wrap=True)
    if json is not None:
        write_json(json, results, measured_on, versions)
    if any(result.error is not None for result in results):
        raise typer.Exit(1)


def _chosen(works: list[Work], only: list[str] | None) -> list[Work]:
    if only is None:
        return works
    chosen = [work for work in works if any(work.name == name or work.name.startswith(f"{name}-") for name in only)]
    if not chosen:
        raise typer.BadParameter(f"no work is named like that; there are {', '.join(work.name for work in works)}")
    return chosen


def _peers(console: Console, names: list[str] | None) -> list[Peer]:
    """Return the chosen peers, installed and with their load generators, or end with what to do."""
    if unknown := set(names or ()) - set(PEERS):
        raise typer.BadParameter(f"no such server: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if missing := missing_programs():
        console.print(f"The load generators are missing; on Debian and Ubuntu: apt-get install {' '.join(missing)}")
        raise typer.Exit(2)
    chosen = names or PEERS
    peers: list[Peer] = []
    if "triton" in chosen:
        triton = TritonInstall(CHECKOUT / ".bench")
        with console.status("install Triton 2.51 (once)"):
            triton.ensure()
        peers.append(Triton(triton))
    if "conch" in chosen:
        conch = ConchInstall(CHECKOUT, CHECKOUT / ".bench")
        with console.status("compile and install Conch (when it has changed)"):
            conch.ensure()
        peers.append(Conch(conch))
    return peers


if __name__ == "__main__":
    typer.run(bench)
