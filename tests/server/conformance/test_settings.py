"""Trace and log settings by the official clients, over both protocols."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.support.server_process import ConchProcess

OFF = {
    "trace_level": ["OFF"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_file": "",
    "trace_mode": "triton",
}
LOG = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, conch: ConchProcess) -> Iterator[Any]:
    module = {"http": http, "grpc": grpc}[request.param]
    client = module.InferenceServerClient(getattr(conch, request.param))
    yield client
    client.close()


def plain(settings: Any) -> dict[str, Any]:
    """The settings in one form for both protocols."""
    if isinstance(settings, dict):
        return settings
    by_name: dict[str, Any] = {}
    for name, value in settings.settings.items():
        if hasattr(value, "value"):
            by_name[name] = list(value.value) if name == "trace_level" else value.value[0]
        else:
            by_name[name] = getattr(value, value.WhichOneof("parameter_choice"))
    return by_name


def refusal(call: Any, *arguments: Any) -> tuple[str, str]:
    with pytest.raises(InferenceServerException) as caught:
        call(*arguments)
    return str(caught.value.status()), str(caught.value.message())


def test_trace_settings_of_all_and_of_one_model(client: Any) -> None:
    assert plain(client.get_trace_settings()) == OFF
    changed = plain(client.update_trace_settings("addsub", {"trace_rate": "3", "log_frequency": "2"}))
    assert changed == OFF | {"trace_rate": "3", "log_frequency": "2"}
    assert plain(client.update_trace_settings(None, {"trace_count": "9", "trace_rate": "7"}))["trace_rate"] == "7"
    assert plain(client.get_trace_settings("addsub")) == changed | {"trace_count": "9"}
    cleared = {"trace_rate": None, "trace_count": None, "log_frequency": None, "trace_level": None}
    assert plain(client.update_trace_settings(None, cleared)) == OFF
    assert plain(client.update_trace_settings("addsub", cleared)) == OFF


def test_trace_settings_that_are_wrong_change_nothing(client: Any) -> None:
    unimplemented = refusal(client.update_trace_settings, None, {"trace_file": "elsewhere"})
    assert unimplemented[0] in ("501", "StatusCode.UNIMPLEMENTED")
    assert unimplemented[1] == "trace file location can not be updated through network protocol"
    for changes, text in (
        ({"trace_level": ["TIMESTAMPS"]}, "Attempting to set invalid trace setting :trace file name is not given"),
        ({"trace_rate": "x"}, "Unable to parse 'trace_rate', got: x"),
        ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
    ):
        status, message = refusal(client.update_trace_settings, "addsub", changes)
        assert status in ("400", "StatusCode.INVALID_ARGUMENT")
        assert message == text
    assert refusal(client.get_trace_settings, "nope")[1] == "Request for unknown model : nope"
    assert refusal(client.update_trace_settings, "nope", {})[1] == "Request for unknown model : nope"
    assert plain(client.get_trace_settings("addsub")) == OFF
    assert plain(client.update_trace_settings("addsub", {"unknown": "1"})) == OFF
    for level in ("MIN", "MAX", "timestamps"):  # MIN and MAX are levels of the command line only
        assert plain(client.update_trace_settings(None, {"trace_level": [level]})) == OFF


def test_log_settings(client: Any, conch: ConchProcess) -> None:
    assert plain(client.get_log_settings()) == LOG
    assert plain(client.update_log_settings({"log_format": "json", "log_verbose_level": 2})) == LOG | {
        "log_format": "json",
        "log_verbose_level": 2,
    }
    assert plain(client.update_log_settings({"log_format": "default", "log_verbose_level": 0})) == LOG
    status, message = refusal(client.update_log_settings, {"log_file": "elsewhere"})
    assert status in ("501", "StatusCode.UNIMPLEMENTED")
    assert message == "log file location can not be updated through network protocol"
    status, message = refusal(client.update_log_settings, {"log_format": "xml", "log_info": False})
    assert status in ("503", "StatusCode.INVALID_ARGUMENT")
    assert message == f"invalid argument for {'--' if status == '503' else ''}log_format, got: xml"
    assert plain(client.get_log_settings()) == LOG


def test_a_level_that_is_switched_off_is_not_logged(client: Any, conch: ConchProcess) -> None:
    client.update_log_settings({"log_info": False, "log_warning": False, "log_error": False})
    before = conch.text
    given = http.InferInput("INPUT0", [1], "BYTES")
    given.set_data_from_numpy(np.array([b"raise"], dtype=object))
    with http.InferenceServerClient(conch.http) as other, pytest.raises(InferenceServerException):
        other.infer("faulty", [given])
    assert conch.text == before
    assert plain(client.update_log_settings({"log_info": True, "log_warning": True, "log_error": True})) == LOG


@pytest.mark.parametrize("path", ["/v2/trace/setting", "/v2/models/addsub/trace/setting", "/v2/logging"])
@pytest.mark.parametrize("body", [b"", b"{", b'{"trace_rate":5,"log_info":5}', b'{"trace_level":"OFF","log_format":1}'])
def test_a_body_that_is_not_settings_is_an_internal_error_as_in_triton(
    conch: ConchProcess, path: str, body: bytes
) -> None:
    request = urllib.request.Request(f"http://{conch.http}{path}", data=body, method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    with caught.value as answer:
        assert answer.code == 500
        text = json.loads(answer.read())["error"]
    assert text.startswith(("failed to parse the request JSON buffer: ", "attempt to access JSON non-"))


def test_trace_settings_have_no_versions(conch: ConchProcess) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{conch.http}/v2/models/addsub/versions/1/trace/setting", timeout=60)
    with caught.value as answer:
        assert answer.code == 404
