"""`pb_utils.ModelConfig`: the configuration that `auto_complete_config` receives, changes and returns."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable


class ModelConfig:
    """A configuration to which a model may add, without contradicting it.

    Methods raise ValueError for a contradiction; the load then fails.
    """

    def __init__(self, model_config: str) -> None:
        self._document: Dict[str, Any] = json.loads(model_config)
        self._name = self._document.get("name", "")

    def as_dict(self) -> Dict[str, Any]:
        """Return the configuration: the ModelConfig message as JSON values."""
        return self._document

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the maximum batch size, which must not be less than a configured one."""
        configured = self._document.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                "configuration specified max_batch_size {}, but in auto-complete-config function for model '{}' "
                "specified max_batch_size {}".format(configured, self._name, max_batch_size)
            )
        self._document["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching. Raises ValueError if another scheduler is configured."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._document:
                raise ValueError(
                    "Configuration specified scheduling_choice as '{}', but auto-complete-config function for model "
                    "'{}' tries to set scheduling_choice as 'dynamic_batching'".format(scheduler, self._name)
                )
        self._document.setdefault("dynamic_batching", {})

    def add_input(self, input: Dict[str, Any]) -> None:  # noqa: A002 - Triton's name
        """Declare an input by `name`, `data_type`, `dims` and optionally `optional`."""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Dict[str, Any]) -> None:
        """Declare an output by `name`, `data_type` and `dims`."""
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Set whether the model is `decoupled`."""
        self._only(("decoupled",), transaction_policy_dict, "model transaction property")
        policy = self._document.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = bool(transaction_policy_dict["decoupled"])
        if policy.get("decoupled", decoupled) != decoupled:
            raise ValueError(
                "trying to change decoupled property in auto-complete-config for model '{}', which is already set to "
                "'{}'.".format(self._name, policy["decoupled"])
            )
        policy["decoupled"] = decoupled

    def _add(self, kind: str, tensor: Dict[str, Any], known: Iterable[str]) -> None:
        where = "{} '{}'".format(kind, tensor["name"]) if "name" in tensor else kind
        self._only(known, tensor, where)
        for required in ("name", "data_type", "dims"):
            if required not in tensor:
                raise ValueError(
                    "{} in auto-complete-config function for model '{}' is missing '{}' property.".format(
                        where, self._name, required
                    )
                )
        tensors = self._document.setdefault(kind, [])
        for configured in tensors:
            if configured.get("name") == tensor["name"]:
                self._merge(kind, configured, tensor)
                return
        tensors.append({key: list(value) if key == "dims" else value for key, value in tensor.items()})

    def _merge(self, kind: str, configured: Dict[str, Any], tensor: Dict[str, Any]) -> None:
        name = tensor["name"]
        datatype = configured.get("data_type", "TYPE_INVALID")
        if datatype not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                "unable to load model '{}', configuration expects datatype {} for {} '{}', model provides {}".format(
                    self._name, datatype, kind, name, tensor["data_type"]
                )
            )
        dims = list(map(int, configured.get("dims", ())))
        if dims and dims != list(tensor["dims"]):
            raise ValueError(
                "model '{}', tensor '{}': the model expects dims {} but the model configuration specifies dims "
                "{}".format(self._name, name, list(tensor["dims"]), dims)
            )
        optional = configured.get("optional")
        if optional is not None and tensor.get("optional", optional) != optional:
            raise ValueError(
                "model '{}', tensor '{}': the model expects optional {} but the model configuration specifies "
                "optional {}".format(self._name, name, tensor["optional"], optional)
            )
        configured.update({key: list(value) if key == "dims" else value for key, value in tensor.items()})

    def _only(self, known: Iterable[str], properties: Iterable[str], where: str) -> None:
        names = ["'{}'".format(name) for name in known]
        allowed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        for unknown in set(properties).difference(known):
            raise ValueError(
                "{} in auto-complete-config function for model '{}' contains property other than {}. "
                "Unknown: '{}'".format(where, self._name, allowed, unknown)
            )
