"""Records whole grids of configurations, for replays of the tuner's searches (benchmarks/tuning/replay.py).

Serve the models first, on a machine with nothing else to do:

    mkdir grid-models && cp -r examples/models/{densenet_onnx,detect,preprocess,detector,postprocess} grid-models
    cp -r benchmarks/repository/busy grid-models
    conch serve --model-repository=grid-models --model-control-mode=explicit --load-model='*'
    python -m benchmarks.tuning.grids --url http://localhost:8000

Each round measures every point of the grid once, in another order, so that a slow minute of the machine does not fall
on one configuration.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from benchmarks.harness.machine import CHECKOUT, machine
from conch.measure.bench.input_settings import InputSettings
from conch.measure.tune.deployment import Deployment
from conch.measure.tune.knobs import LOAD, composing_models
from conch.measure.tune.repository_client import RepositoryClient, ServerAccess, ServerRefusal
from conch.measure.tune.space import Dimension, Space
from conch.measure.tune.state.folder import StateFolder
from conch.measure.tune.state.session import ModelSession
from conch.measure.tune.trials import BenchMeter
from conch.measure.tune.tune_settings import TrialSettings

OUTPUT = Path(__file__).with_name("grids.json")


@dataclass(frozen=True)
class GridWork:
    """A model, its grid, and how long one point is measured."""

    model: str
    space: Space
    window_s: float
    images: str | None = None


WORKS = (
    GridWork(
        "busy",
        Space(
            (
                Dimension(LOAD, (1, 4, 16), reloads=False),
                Dimension("instances", (1, 2, 3, 4)),
                Dimension("max_batch_size", (2, 8)),
                Dimension("queue_delay_us", ("off", 0, 500, 2000)),
            )
        ),
        0.6,
    ),
    GridWork(
        "densenet_onnx",
        Space(
            (
                Dimension(LOAD, (1, 8), reloads=False),
                Dimension("instances", (1, 2, 4)),
                Dimension("threads", (0, 1, 2)),
                Dimension("max_batch_size", (4, 16)),
                Dimension("queue_delay_us", ("off", 2000)),
            )
        ),
        1.0,
    ),
    GridWork(
        "detect",
        Space(
            (
                Dimension(LOAD, (1, 6), reloads=False),
                Dimension("preprocess/instances", (1, 2)),
                Dimension("detector/instances", (1, 2)),
                Dimension("detector/threads", (1, 2)),
                Dimension("detector/queue_delay_us", ("off", 2000)),
                Dimension("postprocess/instances", (1, 2)),
            )
        ),
        1.5,
        str(CHECKOUT / "examples" / "images"),
    ),
)


def record(work: GridWork, url: str, rounds: int, state: Path) -> dict[str, object]:
    """Return the grid of one model: for each point, one mapping of figures for each round, null where it failed."""
    access = ServerAccess(url)
    client = RepositoryClient(access)
    client.check_explicit()
    config = client.config(work.model)
    documents = {name: client.config(name) for name in (work.model, *composing_models(config))}
    deployment = Deployment(client, work.model, documents)
    meter = BenchMeter(
        access,
        work.model,
        TrialSettings(window_s=work.window_s, warm_up_s=0.2, inputs=InputSettings(images=work.images)),
    )
    session = ModelSession(client, StateFolder.of(state, url, work.model), work.model, print)
    points = list(work.space.points())
    measured: dict[tuple[int, ...], list[dict[str, float] | None]] = {point: [] for point in points}
    session.open()
    try:
        session.protect(list(documents))
        for number in range(rounds):
            Random(number).shuffle(points)
            started = time.monotonic()
            # Loads of one configuration stand together: a load takes longer than a measurement.
            for point in sorted(points, key=lambda point: points.index((0, *point[1:]))):
                settings = work.space.settings(point)
                try:
                    deployment.load(settings)
                    reading = meter.measure(settings[LOAD], 1.0)
                    measured[point].append(reading.figures or None)
                except ServerRefusal:
                    measured[point].append(None)
            print(f"{work.model}: round {number + 1} of {rounds}, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        session.restore(60)
        session.close()
    return {
        "model": work.model,
        "window_s": work.window_s,
        "dimensions": [
            {"name": dimension.name, "values": dimension.values, "ordered": dimension.ordered}
            for dimension in work.space.dimensions
        ],
        "points": [
            {
                "point": point,
                "rounds": [
                    None if figures is None else {name: round(figures[name], 6) for name in ("throughput", "p99")}
                    for figures in rounds_
                ],
            }
            for point, rounds_ in sorted(measured.items())
        ],
    }


def main(
    url: Annotated[str, typer.Option()] = "http://localhost:8000",
    rounds: Annotated[int, typer.Option()] = 3,
    model: Annotated[list[str] | None, typer.Option()] = None,
    output: Annotated[Path, typer.Option()] = OUTPUT,
    state: Annotated[Path, typer.Option(help="state directory of the tuner")] = CHECKOUT / ".bench" / "tune",
) -> None:
    """Record the grids and write them as JSON; models that are not chosen keep their grids."""
    known = json.loads(output.read_text())["grids"] if output.exists() else {}
    for work in WORKS:
        if model is None or work.model in model:
            known[work.model] = record(work, url, rounds, state)
            output.write_text(json.dumps({"machine": machine(), "grids": known}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    typer.run(main)
