"""Stand-ins: models with the configuration of recorded ones, that take as long as those did."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from conch.base.errors import ConfigError, InvalidRequest
from conch.domain.config.document import from_document
from conch.domain.events.log import EventLog

_MAX_TIMES = 20_000  # of each batch size
_MAX_DEPTH = 20  # of ensembles
_CODE = "stand_in_model.py"
_EXECUTIONS, _CLOCK_SHIFT = "executions.npy", "clock_shift"


@dataclass(frozen=True)
class StandInChange:
    """What is different from the recorded world. None leaves a setting of the configuration as it is."""

    instances: int | None = None
    max_batch_size: int | None = None
    delay_us: int | None = None
    speed: float = 1.0

    @property
    def is_none(self) -> bool:
        """Whether the world is the recorded one, so that executions can end at their recorded times."""
        return self == StandInChange()

    def of_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a changed document. Raises InvalidRequest if the model has no such setting."""
        changed = dict(config)
        if self.instances is not None:
            groups = changed.get("instance_group") or [{}]
            changed["instance_group"] = [{**groups[0], "count": self.instances}]
        if self.max_batch_size is not None:
            changed["max_batch_size"] = self.max_batch_size
        if self.delay_us is not None:
            if changed.get("sequence_batching"):
                raise InvalidRequest(
                    f"model '{config.get('name')}' has sequence batching, which has no delay to change"
                )
            batching = changed.get("dynamic_batching") or {}
            changed["dynamic_batching"] = {**batching, "max_queue_delay_microseconds": self.delay_us}
        return changed


# What the stand-in of a configuration keeps; other fields are of the files and the devices of the model.
_KEPT = ("name", "max_batch_size", "input", "output", "dynamic_batching", "sequence_batching", "version_policy")
_KEPT_OF_ENSEMBLES = ("platform", "ensemble_scheduling")
Configs: TypeAlias = Mapping[str, Mapping[str, Any]]


def refusal(log: EventLog, model: str, configs: Configs) -> str:
    """Return why a model cannot have a stand-in, "" if it can. `configs` are recorded ones by name."""
    due, seen = [model], set[str]()
    while due:
        name = due.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in configs:
            return f"the bundle does not have the configuration of model '{name}'"
        try:
            from_document(configs[name], f"configuration of '{name}'")
        except ConfigError as error:
            return f"the bundle is damaged: {error.message}"
        steps = _steps(configs[name])
        due += steps
        if not steps and not service_times(log, name):
            return f"the bundle has no execution of model '{name}'"
    return ""


def _steps(config: Mapping[str, Any]) -> list[str]:
    """Return the models of an ensemble's steps, none for other models."""
    return [str(step.get("model_name")) for step in (config.get("ensemble_scheduling") or {}).get("step") or ()]


def write_stand_ins(
    repository: Path, log: EventLog, configs: Configs, models: Sequence[str], change: StandInChange
) -> None:
    """Write stand-ins of models without a refusal, changed, and of the steps of ensembles among them.

    Raises InvalidRequest if a configuration is damaged.
    """
    due = list(models)
    written: set[str] = set()
    while due:
        name = due.pop()
        if name not in written:
            written.add(name)
            due += _steps(configs[name])
            _write(repository, log, configs[name], change if name in models else StandInChange(speed=change.speed))


def _write(repository: Path, log: EventLog, config: Mapping[str, Any], change: StandInChange) -> None:
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.text_format import MessageToString

    from conch.domain.triton_messages import model_config_pb2

    name = str(config.get("name"))
    ensemble = bool(_steps(config))
    changed = dict(config) if ensemble else change.of_config(config)
    kept = (*_KEPT, *_KEPT_OF_ENSEMBLES) if ensemble else _KEPT
    document = {key: changed[key] for key in kept if changed.get(key)}
    if not ensemble:
        count = sum(int(group.get("count") or 1) for group in changed.get("instance_group") or [{}])
        document |= {"backend": "python", "instance_group": [{"count": count, "kind": "KIND_CPU"}]}
    if "sequence_batching" in document:  # whose states are the model's
        document["sequence_batching"] = {**document["sequence_batching"], "state": []}
    try:
        text = MessageToString(ParseDict(document, model_config_pb2.ModelConfig()))
    except ParseError as error:
        raise InvalidRequest(f"the configuration of model '{name}' in the bundle is damaged: {error}") from None
    if Path(name).name != name or name.startswith("."):
        raise InvalidRequest(f"{name!a} is not a valid name of a model")
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(text, encoding="utf-8")
    if ensemble:
        return
    if change.is_none:
        np.save(folder / _EXECUTIONS, executions(log, name))
    times = service_times(log, name)
    (folder / "model.py").write_text(files(__package__).joinpath(_CODE).read_text("utf-8"), encoding="utf-8")
    (folder / "service_times.json").write_bytes(orjson.dumps({str(size): of_size for size, of_size in times.items()}))


def write_clock_shift(repository: Path, shift_ns: int) -> None:
    """Give the stand-ins of the recorded world what to add to recorded times, before the first request is sent."""
    for path in repository.glob(f"*/1/{_EXECUTIONS}"):
        path.with_name(_CLOCK_SHIFT).write_text(str(shift_ns))


def executions(log: EventLog, model: str) -> NDArray[np.int64]:
    """Return the number of a client's request, and when an execution for it began and ended (ns of the log).

    The steps of an ensemble are executed for the client's request.
    """
    batches, begun, ended = _executed(log, model)
    order = np.argsort(batches["number"])
    requests = log.requests[log.requests["model"] == _number(log, model)]
    places = np.searchsorted(batches["number"][order], requests["batch"])
    known = np.isin(requests["batch"], batches["number"])
    requests, places = requests[known], order[places[known]]
    return np.stack([_client_numbers(log, requests), begun[places], ended[places]], axis=1)


def _client_numbers(log: EventLog, requests: NDArray[Any]) -> NDArray[np.int64]:
    """Return the numbers of the clients' requests on whose behalf requests were made."""
    order = np.argsort(log.requests["number"])
    numbers, parents = log.requests["number"][order], log.requests["parent"][order]
    client_numbers = requests["number"].astype(np.int64)
    for _ in range(_MAX_DEPTH):
        parent = parents[np.searchsorted(numbers, client_numbers)]
        nested = np.isin(parent, numbers)
        if not nested.any():
            break
        client_numbers[nested] = parent[nested]
    return client_numbers


def service_times(log: EventLog, model: str) -> dict[int, list[int]]:
    """Return how long executions took by batch size, in ns and in their order."""
    rows, begun, ended = _executed(log, model)
    order = np.argsort(rows["started"], kind="stable")
    times: dict[int, list[int]] = {}
    for size, ns in zip(rows["size"][order].tolist(), (ended - begun)[order].tolist(), strict=True):
        if size > 0 and len(times.setdefault(size, [])) < _MAX_TIMES:
            times[size].append(ns)
    return times


def _executed(log: EventLog, model: str) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of a model's executions, and when they began and ended."""
    rows = log.batches[log.batches["model"] == _number(log, model)]
    begun = np.where(rows["input_done"] > 0, rows["input_done"], rows["started"])
    ended = np.where(rows["infer_done"] > 0, rows["infer_done"], rows["released"])
    known = (begun > 0) & (ended >= begun)
    return rows[known], begun[known], ended[known]


def _number(log: EventLog, model: str) -> int:
    """Return the number of a model's name in a log, -1 if it has none: nothing of the model was recorded."""
    return log.names.index(model) if model in log.names else -1
