"""Stand-ins: models with the configuration of recorded ones, that take as long as those did."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from conch.base.errors import InvalidRequest
from conch.domain.events.log import EventLog

_MAX_TIMES = 20_000  # of each batch size
_CODE = "stand_in_model.py"


@dataclass(frozen=True)
class StandInChange:
    """What is different from the recorded configuration; None leaves a setting as it is."""

    instances: int | None = None
    max_batch_size: int | None = None
    delay_us: int | None = None

    def of_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a changed document."""
        changed = dict(config)
        if self.instances is not None:
            groups = changed.get("instance_group") or [{}]
            changed["instance_group"] = [{**groups[0], "count": self.instances}]
        if self.max_batch_size is not None:
            changed["max_batch_size"] = self.max_batch_size
        if self.delay_us is not None:
            batching = changed.get("dynamic_batching") or {}
            changed["dynamic_batching"] = {**batching, "max_queue_delay_microseconds": self.delay_us}
        return changed


# What the stand-in of a configuration keeps; other fields are of the files and the devices of the model.
_KEPT = ("name", "max_batch_size", "input", "output", "dynamic_batching", "version_policy")


def write_stand_in(repository: Path, log: EventLog, config: Mapping[str, Any], change: StandInChange) -> None:
    """Write the stand-in of a model, of which the log has executions. Raises InvalidRequest if `config` is damaged."""
    from google.protobuf.json_format import ParseDict, ParseError
    from google.protobuf.text_format import MessageToString

    from conch.domain.triton_messages import model_config_pb2

    name = str(config.get("name"))
    times = service_times(log, name)
    changed = change.of_config(config)
    document = {key: changed[key] for key in _KEPT if changed.get(key)}
    count = sum(int(group.get("count") or 1) for group in changed.get("instance_group") or [{}])
    document |= {"backend": "python", "instance_group": [{"count": count, "kind": "KIND_CPU"}]}
    try:
        text = MessageToString(ParseDict(document, model_config_pb2.ModelConfig()))
    except ParseError as error:
        raise InvalidRequest(f"the configuration of model '{name}' in the bundle is damaged: {error}") from None
    if Path(name).name != name or name.startswith("."):
        raise InvalidRequest(f"{name!a} is not a valid name of a model")
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(text, encoding="utf-8")
    (folder / "model.py").write_text(files(__package__).joinpath(_CODE).read_text("utf-8"), encoding="utf-8")
    (folder / "service_times.json").write_bytes(orjson.dumps({str(size): found for size, found in times.items()}))


def service_times(log: EventLog, model: str) -> dict[int, list[int]]:
    """Return how long executions took by batch size, in ns and in their order."""
    if model not in log.names:
        return {}
    rows = log.batches[log.batches["model"] == log.names.index(model)]
    begun = np.where(rows["input_done"] > 0, rows["input_done"], rows["started"])
    ended = np.where(rows["infer_done"] > 0, rows["infer_done"], rows["released"])
    rows, took = rows[(begun > 0) & (ended >= begun)], (ended - begun)[(begun > 0) & (ended >= begun)]
    order = np.argsort(rows["started"], kind="stable")
    found: dict[int, list[int]] = {}
    for size, ns in zip(rows["size"][order].tolist(), took[order].tolist(), strict=True):
        if size > 0 and len(found.setdefault(size, [])) < _MAX_TIMES:
            found[size].append(ns)
    return found
