"""Event logs of simulated models: a known truth, from which the twin learns."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from conch.domain.config.document import from_document
from conch.domain.config.from_proto import to_model_config
from conch.domain.events.log import EventLog
from conch.domain.model_config import ModelConfig
from conch.measure.twin.simulation import (
    BatchStation,
    EnsembleStation,
    InstanceStation,
    SentRequests,
    SequenceStation,
    Simulation,
    Work,
)

Document = dict[str, Any]

MS = 1_000_000
BEGIN = 1_000_000_000  # of the log's clock
_TENSOR = {"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}


def document(name: str = "m", max_batch_size: int = 8, instances: int = 1, **fields: Any) -> Document:
    """The configuration document of a model."""
    return {
        "name": name,
        "backend": "onnxruntime",
        "max_batch_size": max_batch_size,
        "input": [_TENSOR],
        "output": [{**_TENSOR, "name": "OUT"}],
        "instance_group": [{"count": instances, "kind": "KIND_CPU"}],
        **fields,
    }


def batching(delay_us: int = 0, **fields: Any) -> Document:
    return {"dynamic_batching": {"max_queue_delay_microseconds": delay_us, **fields}}


def ensemble(name: str, *steps: str) -> Document:
    """An ensemble of steps in a row."""
    tensors = ["IN", *(f"T{number}" for number in range(1, len(steps))), "OUT"]
    return {
        "name": name,
        "platform": "ensemble",
        "max_batch_size": 8,
        "input": [_TENSOR],
        "output": [{**_TENSOR, "name": "OUT"}],
        "ensemble_scheduling": {
            "step": [
                {"model_name": step, "input_map": {"IN": tensors[number]}, "output_map": {"OUT": tensors[number + 1]}}
                for number, step in enumerate(steps)
            ]
        },
    }


def config(of: Document) -> ModelConfig:
    return to_model_config(from_document(of, "config"))


def traffic(at: Sequence[int], **columns: Sequence[Any]) -> SentRequests:
    """Requests of size 1 at these times, 20 µs before and 30 µs after the model."""
    count = len(at)
    zeros = [0] * count
    given = {name: list(values) for name, values in columns.items()}
    return SentRequests(
        list(at),
        given.get("sizes", [1] * count),
        given.get("kinds", zeros),
        [20_000] * count,
        [30_000] * count,
        given.get("priorities", zeros),
        given.get("timeouts_us", zeros),
        given.get("keys", zeros),
        given.get("ends", [False] * count),
        given.get("tenants", [""] * count),
    )


def poisson(rate: float, count: int, seed: int = 0) -> list[int]:
    """Times of Poisson arrivals, ns."""
    gaps = np.random.default_rng(seed).exponential(1e9 / rate, count)
    return [int(at) + 1 for at in np.cumsum(gaps)]


def work(of_size: Callable[[int], float], seed: int = 0, sigma: float = 0.1) -> Work:
    """Work by size, with a log-normal spread; kind 1 takes four times as long."""
    ratios = np.random.default_rng(seed + 99).lognormal(0, sigma, 5000).tolist() if sigma else [1.0]
    sizes = range(65)
    return Work([of_size(size) for size in sizes], [1.0, 4.0], ratios)


def run(
    documents: Document | Sequence[Document],
    requests: SentRequests,
    drawn: Work,
    *,
    cores: float = 0.0,
    machine: float = 2.0,
    clients: int = 0,
    executing: float = 0.0,
    max_queue_size: int = 0,
) -> Simulation:
    """Simulate models, the first of which gets the requests, and keep the batches."""
    simulation = Simulation(requests, machine, clients=clients, keep_batches=True)
    for of in [documents] if isinstance(documents, dict) else documents:
        model = config(of)
        if model.is_ensemble:
            simulation.add(EnsembleStation(simulation, model))
            continue
        instances = of["instance_group"][0]["count"]
        if model.sequence_batching is not None:
            simulation.add(SequenceStation(simulation, model, drawn, instances, cores))
        else:
            late, bound = [50_000], max_queue_size
            simulation.add(BatchStation(simulation, model, drawn, instances, cores, late, executing, bound))
    simulation.run()
    return simulation


def station(simulation: Simulation, name: str = "m") -> InstanceStation:
    station = simulation.by_name[name]
    assert isinstance(station, InstanceStation)
    return station


def log_of(simulation: Simulation, *documents: Document, machine: float = 2.0, **columns: int) -> EventLog:
    """The event log that a server would have written. `columns` are of all batches."""
    delays = {
        of["name"]: of.get("dynamic_batching", {}).get("max_queue_delay_microseconds", 0) * 1000 for of in documents
    }
    batches, requests = list[Document](), list[Document]()
    count = len(simulation.done)
    for number, batch in enumerate(sorted(simulation.batches, key=lambda batch: batch.formed), 1):
        delay = delays[batch.model]
        late = delay and batch.formed - min(job.queued for job in batch.jobs) >= delay
        common = {"model": batch.model, "version": 1}
        times = {
            "started": batch.begun + BEGIN, "input_done": batch.begun + BEGIN, "infer_done": batch.released + BEGIN,
        }  # fmt: skip
        batches.append(common | times | columns | {
            "number": number, "instance": f"{batch.model}_{batch.instance}", "size": batch.size,
            "why_now": "delay over" if late else "full" if delay else "idle", "ahead": int(batch.begun > batch.formed),
            "members": len(batch.jobs), "formed": batch.formed + BEGIN, "released": batch.released + BEGIN,
        })  # fmt: skip
        for job in batch.jobs:
            inner = job.flow is not None
            requests.append(common | times | {
                "number": job.number + 1 + count * (job.step + 1 if inner else 0), "parent": inner * (job.number + 1),
                "batch": number, "outcome": "ok", "batch_size": job.batch_size, "shape": f"IN FP32 [{job.kind}]",
                "correlation": job.key, "queued": job.queued + BEGIN,
                "received": (job.queued if inner else simulation.began[job.number]) + BEGIN,
                "done": (batch.released if inner else simulation.done[job.number]) + BEGIN,
            })  # fmt: skip
    if documents[0].get("platform") == "ensemble":
        for number, (began, done) in enumerate(zip(simulation.began, simulation.done, strict=True)):
            requests.append({
                "number": number + 1, "model": documents[0]["name"], "version": 1, "outcome": "ok", "batch_size": 1,
                "shape": "IN FP32 [1]", "received": began + BEGIN, "queued": began + 20_000 + BEGIN,
                "done": done + BEGIN,
            })  # fmt: skip
    server = {"cores": machine, "models": {of["name"]: of for of in documents}}
    return EventLog.of_rows({"requests": requests, "batches": batches}, server=server)


def percentile(simulation: Simulation, percent: float) -> float:
    """A percentile of the clients' latencies, ns."""
    done, began = np.array(simulation.done), np.array(simulation.began)
    return float(np.percentile((done - began)[done > 0], percent))
