"""Trace and log settings in protobuf: decode changes, encode settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from conch.base.errors import InvalidRequest
from conch.domain.triton_messages import service_pb2

_KINDS = {
    "log_file": ("string_param", "string"),
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def read_trace_changes(request: Any) -> dict[str, Sequence[str] | None]:
    """Return the settings to change by name, None for those to reset, which have no value."""
    return {name: list(setting.value) or None for name, setting in request.settings.items()}


def read_log_changes(request: Any) -> dict[str, str | bool | int]:
    """Return the settings to change by name; unknown names are ignored. Raises InvalidRequest."""
    changes: dict[str, str | bool | int] = {}
    for name, (member, kind) in _KINDS.items():
        if name in request.settings:
            setting = request.settings[name]
            if name == "log_file":
                changes[name] = ""  # refused for any value
                continue
            if setting.WhichOneof("parameter_choice") != member:
                raise InvalidRequest(f"expect {kind} for '{name}'")
            changes[name] = getattr(setting, member)
    return changes


def trace_settings(settings: Mapping[str, str | list[str]]) -> Any:
    """Encode trace settings."""
    response = service_pb2.TraceSettingResponse()
    for name, value in settings.items():
        response.settings[name].value.extend([value] if isinstance(value, str) else value)
    return response


def log_settings(settings: Mapping[str, str | bool | int]) -> Any:
    """Encode log settings."""
    response = service_pb2.LogSettingsResponse()
    for name, value in settings.items():
        setattr(response.settings[name], _KINDS[name][0], value)
    return response
