"""Language models served: `python -m benchmarks.llm [--only SYSTEM] [--rounds N] [--concurrency N] [--json FILE] …`.

One model of random weights in four systems, measured in turns: OpenVINO GenAI without a server, Conch with it, vLLM's
own server, and Conch with vLLM. Clients run in a separate process on the same machine.
"""

import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks.harness.conch_install import ConchInstall
from benchmarks.harness.machine import machine
from benchmarks.harness.peers import PeerError
from benchmarks.harness.vllm_install import VllmInstall
from benchmarks.llm.model import write_checkpoint, write_gguf
from benchmarks.llm.report import Measured, Sample, markdown, verdicts, write_json
from benchmarks.llm.systems import CHECKOUT, CONCH_VLLM, SYSTEMS, VLLM, Installs, System, all_started
from benchmarks.llm.work import Job, Work

PROMPTS = (16, 512)
CONCURRENCY = (1, 5, 30, 64)
ROUNDS = 3
# Requests of each client in a round, by how many clients there are; otherwise `_FEW`. A lone one is quick.
_REQUESTS = {1: 8, 5: 5}
_FEW = 2
_WARM_UP_SEED, _FIRST_SEED = 0, 1
# Between two systems: the threads of one spin for a part of a second after their last token, on the other's cores.
_REST_S = 1.5
PLAIN_COLUMNS = 240


def bench(
    only: Annotated[list[str] | None, typer.Option(help=f"Measure only this one of {', '.join(SYSTEMS)}.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each work.")] = ROUNDS,
    prompt: Annotated[list[int] | None, typer.Option(help="Tokens of a prompt; repeatable.")] = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Requests at once; repeatable.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests of each client in a round.")] = None,
    installed: Annotated[bool, typer.Option(help="Measure Conch as it was installed before.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures of all rounds to this file.")] = None,
) -> None:
    """Compare Conch with its engines alone and with vLLM's server. The exit status is 1 when a request failed."""
    console = Console()
    if not console.is_terminal:
        console.width = PLAIN_COLUMNS
    # As Ctrl-C does, so that no server is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if unknown := set(only or ()) - set(SYSTEMS):
        raise typer.BadParameter(f"no such system: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    chosen = [name for name in SYSTEMS if not only or name in only]
    works = [Work(tokens, clients) for tokens in prompt or PROMPTS for clients in concurrency or CONCURRENCY]
    measured_on = machine()
    with tempfile.TemporaryDirectory(prefix="conch-bench-") as directory, ExitStack() as running:
        installs = _installs(console, chosen, Path(directory), keep=installed)
        systems: dict[str, System] = {}
        results = [Measured(work) for work in works]
        try:
            with console.status("start") as status:
                for name, system in all_started(chosen, installs, Path(directory), running):
                    console.print(f"{name}: up")
                    status.update("start the next")
                    systems[name] = system
                for result in results:
                    _measure(result, systems, rounds, requests, status.update)
                    console.print(markdown([result]), markup=False, soft_wrap=True)
        except PeerError as error:
            console.print(escape(str(error)))
            raise typer.Exit(1) from error
        packages = {name: installs.packages(name) for name in chosen}
    _tell(console, results, {**measured_on, **packages})
    if json is not None:
        write_json(json, results, measured_on, packages)
    if any(result.failures for result in results):
        raise typer.Exit(1)


def _installs(console: Console, chosen: Sequence[str], directory: Path, *, keep: bool) -> Installs:
    """Install what is measured and write the model."""
    conch, vllm = ConchInstall(CHECKOUT, CHECKOUT / ".bench"), VllmInstall(CHECKOUT / ".bench")
    if not keep:
        with console.status("compile and install Conch (when it has changed)"):
            conch.ensure()
    if {VLLM, CONCH_VLLM} & set(chosen):
        with console.status("install vLLM (once, some 3.5 GB)"):
            vllm.ensure()
    installs = Installs(conch, vllm, directory / "model.gguf", directory / "checkpoint")
    write_gguf(installs.gguf)
    write_checkpoint(installs.checkpoint)
    return installs


def _measure(
    result: Measured,
    systems: Mapping[str, System],
    rounds: int,
    requests: int | None,
    progress: Callable[[str], None],
) -> None:
    """Do all rounds of a work, every system in each, the one that begins being another each time."""
    work = result.work
    per_client = requests or _REQUESTS.get(work.concurrency, _FEW)
    names = list(systems)
    for name in names:
        progress(f"{work.name}: warm up {name}")
        systems[name].do(Job(work.prompt_tokens, work.concurrency, work.concurrency, _WARM_UP_SEED))
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            progress(f"{work.name}: round {number + 1} of {rounds}, {name}")
            job = Job(work.prompt_tokens, work.concurrency, work.concurrency * per_client, _FIRST_SEED + number)
            result.add(name, _take(systems[name], job))


def _take(system: System, job: Job) -> Sample:
    sleep(_REST_S)
    before = system.tree.cpu_seconds()
    timings = system.do(job)
    return Sample(timings, system.tree.cpu_seconds() - before, system.tree.proportional_set_bytes())


def _tell(console: Console, results: Sequence[Measured], measured_with: Mapping[str, str]) -> None:
    console.print(markdown(results), markup=False, soft_wrap=True)
    for line in verdicts(results):
        console.print(line, markup=False, soft_wrap=True)
    for result in results:
        for failure in result.failures:
            console.print(f"{result.work.name}: {failure}", markup=False, soft_wrap=True)
    for name, value in measured_with.items():
        console.print(f"{name}: {value}", style="dim", soft_wrap=True)


if __name__ == "__main__":
    typer.run(bench)
