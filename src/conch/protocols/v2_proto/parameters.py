# Compiled by mypyc in wheels.
"""Decode and encode maps of `InferParameter`: Triton's parameters, and custom ones for the model."""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from conch.base.errors import ConchError, InvalidRequest
from conch.domain.request import SEQUENCE_END, SEQUENCE_START, InferRequest, ParameterValue, checked_correlation_id

# `map<string, InferParameter>` and InferParameter, which protobuf creates at run time.
ParameterMap: TypeAlias = Any
Parameter: TypeAlias = Any

_EMPTY_FINAL_RESPONSE: Final = "triton_enable_empty_final_response"
_RESERVED_KEYS: Final = frozenset({"headers", "binary_data_output"})
_RESERVED_PREFIX: Final = "triton_"
# From Triton's messages; more kinds are accepted.
_EXPECTED_KINDS: Final = {
    "sequence_id": "int64_param or string_param",
    "sequence_start": "bool_param",
    "sequence_end": "bool_param",
    "priority": "int64_param or uint64_param",
    "timeout": "int64_param",
    _EMPTY_FINAL_RESPONSE: "bool_param",
}
_EXPECTED_OF_CUSTOM: Final = "int64_param, bool_param, or string_param"
_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1


def decode_parameters(parameters: ParameterMap, request: InferRequest) -> bool:
    """Set attributes of a request from its parameters. Return whether an empty final response is requested.

    Raises InvalidRequest for a wrong type, a value out of range, and a reserved key.
    """
    empty_final_response = False
    for key, value in parameters.items():
        if key == "sequence_id":
            kind = _kind(key, value, "int64_param", "uint64_param", "string_param")
            request.correlation_id = (
                checked_correlation_id(value.string_param) if kind == "string_param" else _unsigned(key, value)
            )
        elif key == "sequence_start":
            request.flags |= SEQUENCE_START if _flag(key, value) else 0
        elif key == "sequence_end":
            request.flags |= SEQUENCE_END if _flag(key, value) else 0
        elif key == "priority":
            _kind(key, value, "int64_param", "uint64_param")
            request.priority = _unsigned(key, value)
        elif key == "timeout":
            _kind(key, value, "int64_param")
            request.timeout_us = _unsigned(key, value)
        elif key == _EMPTY_FINAL_RESPONSE:
            empty_final_response = _flag(key, value)
        elif is_reserved(key):
            raise InvalidRequest(
                f"parameter keys starting with '{_RESERVED_PREFIX}' are reserved for Triton usage. Only the following "
                f"keys starting with '{_RESERVED_PREFIX}' are allowed: {_EMPTY_FINAL_RESPONSE}. Also reserved: "
                f"{', '.join(sorted(_RESERVED_KEYS))}. Got '{key}'"
            )
        else:
            _kind(key, value, "int64_param", "uint64_param", "double_param", "bool_param", "string_param")
            request.parameters[key] = parameter_value(value)
    return empty_final_response


def is_reserved(key: str) -> bool:
    """Whether a key is not valid for a custom parameter."""
    return key.startswith(_RESERVED_PREFIX) or key in _RESERVED_KEYS


def parameter_value(parameter: Parameter) -> ParameterValue:
    """Return the value of an InferParameter; the empty string if it is unset."""
    kind = parameter.WhichOneof("parameter_choice")
    value: ParameterValue = getattr(parameter, kind) if kind else ""
    return value


def encode_parameters(parameters: Mapping[str, ParameterValue], target: ParameterMap) -> None:
    """Write parameters to a message's map. Raises ConchError for an integer outside both int64 and uint64."""
    for key, value in parameters.items():
        if isinstance(value, bool):
            target[key].bool_param = value
        elif isinstance(value, str):
            target[key].string_param = value
        elif isinstance(value, float):
            target[key].double_param = value
        elif _INT64_MIN <= value <= _INT64_MAX:
            target[key].int64_param = value
        elif 0 <= value <= _UINT64_MAX:
            target[key].uint64_param = value
        else:
            raise ConchError(f"response parameter '{key}' is {value}, which does not fit into 64 bits")


def _kind(key: str, value: Parameter, *allowed: str) -> str:
    kind = value.WhichOneof("parameter_choice")
    if kind not in allowed:
        raise InvalidRequest(
            f"invalid value type for '{key}' parameter, expected {_EXPECTED_KINDS.get(key, _EXPECTED_OF_CUSTOM)}. "
            f"It is {kind or 'unset'}."
        )
    return str(kind)


def _flag(key: str, value: Parameter) -> bool:
    _kind(key, value, "bool_param")
    return bool(value.bool_param)


def _unsigned(key: str, value: Parameter) -> int:
    number = int(parameter_value(value))
    if number < 0:
        raise InvalidRequest(f"invalid value for '{key}', expected value >= 0. It is {number}.")
    return number
