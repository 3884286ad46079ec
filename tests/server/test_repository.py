"""What a server does with its repository: at start, at loads and reloads, while polling; and what it says about it."""

import json
import os
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support.models import ECHO, tensor, write_config, write_ensemble, write_identity, write_python
from tests.support.server_process import ConchProcess

ONE_INT = f"input {tensor('INPUT0', 'INT32', 1)} output {tensor('OUTPUT0', 'INT32', 1)}"
EXPLICIT = "--model-control-mode=explicit"
POLL = ("--model-control-mode=poll", "--repository-poll-secs=1")
TRITON_POLL = "failed to poll from model repository"


def post(server: ConchProcess, path: str, body: object = None) -> tuple[int, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{server.http}{path}", data, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            status, text = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, text = error.code, error.read()
    return status, json.loads(text) if text else None


def get(server: ConchProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.http}{path}", timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def index(server: ConchProcess) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = post(server, "/v2/repository/index")[1]
    return rows


def infer(server: ConchProcess, model: str, version: str = "") -> None:
    with triton.InferenceServerClient(server.http, network_timeout=30) as client:
        given = triton.InferInput("INPUT0", [1], "INT32")
        given.set_data_from_numpy(np.array([1], np.int32))
        client.infer(model, [given], version)


def counted(server: ConchProcess, model: str) -> dict[str, int]:
    """Successful requests by version."""
    stats = json.loads(get(server, f"/v2/models/{model}/stats")[1])["model_stats"]
    return {version["version"]: version["inference_stats"]["success"]["count"] for version in stats}


def test_an_unknown_model_of_the_start_ends_it(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "m", "INT32", 1)
    flags = (EXPLICIT, "--load-model=m", "--load-model=m", "--load-model=nope")
    server = ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log", wait="")
    with pytest.raises(AssertionError), server:
        server.until("/v2/health/ready")
    assert server.process.wait(30) == 1
    assert "failed to load 1 of 2 models: 'nope'" in server.text
    assert f"failed to load 'nope', {TRITON_POLL}" in server.text
    flags = (*flags, "--exit-on-error=false")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log2") as server:
        assert index(server) == [{"name": "m", "version": "1", "state": "READY"}]


@pytest.mark.parametrize("mode", ["none", "poll", "explicit"])
def test_without_its_repository_the_server_serves_its_metadata(tmp_path: Path, mode: str) -> None:
    flags = (f"--model-control-mode={mode}", "--repository-poll-secs=1", "--exit-on-error=false")
    with ConchProcess(tmp_path / "nowhere", *flags, log=tmp_path / "log", wait="") as server:
        server.until_logged("model repository '.*nowhere' cannot be read: No such file or directory")
        assert (get(server, "/v2/health/live")[0], get(server, "/v2/health/ready")[0]) == (400, 400)
        assert json.loads(get(server, "/v2")[1])["name"] == "triton"
        not_ready = (503, {"error": "Server not ready"})
        assert post(server, "/v2/repository/index") == not_ready
        assert post(server, "/v2/repository/models/m/load") == not_ready
        assert post(server, "/v2/models/m/infer", {"inputs": []}) == not_ready
        assert get(server, "/v2/models/stats")[0] == 503
        with grpc.InferenceServerClient(server.grpc) as client:
            assert (client.is_server_live(), client.is_server_ready()) == (False, False)
            assert client.get_server_metadata().name == "triton"
            with pytest.raises(InferenceServerException, match="Server not ready") as raised:
                client.get_model_config("m")
            assert raised.value.status() == "StatusCode.UNAVAILABLE"
        if mode == "poll":
            write_identity(tmp_path / "nowhere", "m", "INT32", 1)
            server.until("/v2/health/ready")
            server.until("/v2/models/m/ready")


def test_the_index_lists_what_the_version_policy_serves(tmp_path: Path) -> None:
    config = f'backend: "identity" {ONE_INT} version_policy {{ %s }}'
    write_config(tmp_path / "models", "newest", config % "latest { num_versions: 1 }", 1, 2, 3)
    write_config(tmp_path / "models", "chosen", config % "specific { versions: [ 1, 3, 9 ] }", 1, 2, 3)
    write_identity(tmp_path / "models", "other", "INT32", 1)
    with ConchProcess(
        tmp_path / "models", EXPLICIT, "--load-model=newest", "--load-model=chosen", log=tmp_path / "log"
    ) as server:
        ready = [
            {"name": "chosen", "version": "1", "state": "READY"},
            {"name": "chosen", "version": "3", "state": "READY"},
            {"name": "newest", "version": "3", "state": "READY"},
        ]
        assert index(server) == [*ready, {"name": "other"}]
        assert post(server, "/v2/repository/index", {"ready": True}) == (200, ready)


def test_a_reload_restarts_only_versions_that_changed(tmp_path: Path) -> None:
    models = tmp_path / "models"
    policy = "version_policy { all { } }"
    write_python(models, "m", f"{ONE_INT} {policy}", ECHO, more='def initialize(self, args): print("up", flush=True)')
    shutil.copytree(models / "m" / "1", models / "m" / "2")
    with ConchProcess(models, EXPLICIT, "--load-model=m", log=tmp_path / "log") as server:

        def reload() -> dict[str, int]:
            assert post(server, "/v2/repository/models/m/load") == (200, None)
            return counted(server, "m")

        for version in "1", "2":
            infer(server, "m", version)
        assert reload() == {"1": 1, "2": 1}
        assert server.text.count("successfully loaded 'm'") == 1
        (models / "m" / "config.pbtxt").touch()
        assert reload() == {"1": 1, "2": 1}
        shutil.copytree(models / "m" / "2", models / "m" / "3")
        assert reload() == {"1": 1, "2": 1, "3": 0}
        server.until_logged(r"successfully loaded 'm' version 1, 2, 3 in [\d.]+ s; version 1, 2 unchanged")
        os.utime(models / "m" / "2" / "model.py", ns=(1, 1))
        assert reload() == {"1": 1, "2": 0, "3": 0}
        shutil.rmtree(models / "m" / "3")
        infer(server, "m", "2")
        assert reload() == {"1": 1, "2": 1}
        assert index(server)[-1] == {"name": "m", "version": "3", "state": "UNAVAILABLE", "reason": "unloaded"}
        config = models / "m" / "config.pbtxt"
        config.write_text(config.read_text().replace("all { }", "specific { versions: [ 1 ] }"))
        assert reload() == {"1": 1}
        shown = json.loads(get(server, "/v2/models/m/config")[1])
        assert shown["version_policy"] == {"specific": {"versions": [1]}}
        config.write_text(config.read_text().replace("specific { versions: [ 1 ] }", "all { }"))
        assert reload() == {"1": 1, "2": 0}
        infer(server, "m", "2")
        (models / "m" / "labels.txt").write_text("of every version")
        assert reload() == {"1": 0, "2": 0}
        config.write_text(config.read_text() + "max_batch_size: 0 metric_tags { key: 'a' value: 'b' }")
        infer(server, "m", "1")
        assert reload() == {"1": 0, "2": 0}


def test_a_broken_version_keeps_the_others_out_of_service_and_the_server_unready(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_identity(models, "good", "INT32", 1)
    write_python(models, "half", f"{ONE_INT} version_policy {{ all {{ }} }}", ECHO)
    shutil.copytree(models / "half" / "1", models / "half" / "2")
    (models / "half" / "2" / "model.py").write_text("raise RuntimeError('broken')")
    flags = [EXPLICIT, "--load-model=*", "--exit-on-error=false"]
    with ConchProcess(models, *flags, log=tmp_path / "log", wait="live") as server:
        server.until("/v2/models/good/ready")
        server.until_logged("failed to load 'half' after .*; version 1 is not served either")
        server.until("/v2/health/ready", 400)
        for path in "half", "half/versions/1", "half/versions/2":
            server.until(f"/v2/models/{path}/ready", 400)
        assert get(server, "/v2/models/half")[0] == 404
        assert "'half' has no available versions" in get(server, "/v2/models/half")[1]
        shutil.rmtree(models / "half" / "2")
        assert post(server, "/v2/repository/models/half/load")[0] == 200
        server.until("/v2/health/ready")
        infer(server, "half")
        # A load that fails later leaves what is served, and the server unready until the repository is valid again.
        (models / "half" / "3").mkdir()
        (models / "half" / "3" / "model.py").write_text("raise RuntimeError('broken')")
        assert post(server, "/v2/repository/models/half/load")[0] == 400
        infer(server, "half")
        server.until("/v2/health/ready", 400)
        shutil.rmtree(models / "half" / "3")
        assert post(server, "/v2/repository/models/half/load")[0] == 200
        server.until("/v2/health/ready")


def test_a_model_that_fails_while_polling_leaves_the_server_ready(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_identity(models, "good", "INT32", 1)
    with ConchProcess(models, *POLL, log=tmp_path / "log") as server:
        write_config(models, "unreadable", "no_such_field: 1")
        write_config(models, "failing", f'backend: "nothing" {ONE_INT}')
        server.until_logged("failed to load 'failing' version 1: Invalid argument: unable to find backend library")
        server.until_logged(f"failed to load 'unreadable', {TRITON_POLL}: .*no_such_field")
        assert get(server, "/v2/health/ready")[0] == 200
        states = {row["name"]: row["state"] for row in index(server)}
        assert states == {"good": "READY", "failing": "UNAVAILABLE", "unreadable": "UNAVAILABLE"}
        assert get(server, "/v2/models/failing/ready")[0] == 400


def test_a_model_that_turns_up_twice_while_polling_is_served_by_neither(tmp_path: Path) -> None:
    models, others = tmp_path / "models", tmp_path / "others"
    others.mkdir()
    for name in "m", "good":
        write_identity(models, name, "INT32", 1)
    with ConchProcess(models, f"--model-repository={others}", *POLL, log=tmp_path / "log") as server:
        write_identity(others, "m", "INT32", 1)
        server.until("/v2/models/m/ready", 400)
        assert get(server, "/v2/health/ready")[0] == get(server, "/v2/models/good/ready")[0] == 200
        reason = "model appears in two or more repositories"
        assert index(server)[-1] == {"name": "m", "state": "UNAVAILABLE", "reason": reason}
        server.until_logged("failed to poll model 'm': not unique across all model repositories")
        shutil.rmtree(models / "m")
        server.until("/v2/models/m/ready")


def test_loads_and_unloads_are_logged(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_identity(models, "m", "INT32", 1)
    write_config(models, "bad", f'backend: "nothing" {ONE_INT}')
    with ConchProcess(models, EXPLICIT, log=tmp_path / "log") as server:
        server.until_logged("no model is loaded; clients can load the 2 models of '.*models'")
        post(server, "/v2/repository/models/m/load")
        server.until_logged(r'"loading: m:1"(?s:.)*"successfully loaded \'m\' version 1 in [\d.]+ s"')
        post(server, "/v2/repository/models/m/unload")
        server.until_logged(r"\"successfully unloaded 'm' version 1 in [\d.]+ s\"")
        post(server, "/v2/repository/models/bad/load")
        server.until_logged(r"E.*\"failed to load 'bad' version 1: Invalid argument: unable to find backend library")
        post(server, "/v2/repository/models/nope/load")
        server.until_logged(rf"E.*\"failed to load 'nope', {TRITON_POLL}: model not found in any model repository")
    with ConchProcess(models / ".." / "models", "--exit-on-error=false", log=tmp_path / "log", wait="live") as server:
        server.until_logged("failed to load 1 of 2 models: 'bad'")
        assert post(server, "/v2/repository/models/m/load")[0] == 503
        server.until_logged("refused to load 'm': explicit model load / unload is not allowed if polling is enabled")


def test_loads_that_fail_have_tritons_status(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_identity(models, "m", "INT32", 1)
    write_config(models, "unreadable", "no_such_field: 1")
    write_config(models, "failing", f'backend: "nothing" {ONE_INT}')
    with ConchProcess(models, EXPLICIT, log=tmp_path / "log") as server:

        def load(name: str, **parameters: str) -> tuple[int, str]:
            status, answer = post(server, f"/v2/repository/models/{name}/load", {"parameters": parameters})
            return status, answer["error"]

        for name in "nope", "unreadable":
            status, text = load(name)
            assert (status, text.startswith(f"failed to load '{name}', {TRITON_POLL}: ")) == (500, True)
        for parameters in {"config": "{"}, {"config": '{"max_batch_size": -2}'}, {"file:1/model.py": "aGk="}:
            status, text = load("m", **parameters)
            assert (status, text.startswith(f"failed to load 'm', {TRITON_POLL}: ")) == (500, True)
        status, text = load("failing")
        expected = (
            "load failed for model 'failing': version 1 is at UNAVAILABLE state: Invalid argument: "
            "unable to find backend library"
        )
        assert (status, text[: len(expected)]) == (400, expected)


def test_a_repository_without_models_is_named(tmp_path: Path) -> None:
    for folder in ".git", "lost+found", "__pycache__":
        (tmp_path / "models" / folder).mkdir(parents=True)
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server:
        server.until_logged(f"no models found in '{tmp_path / 'models'}'; expected <repository>/<model>/")
        assert not re.search(r"\| *Model", server.text)
        assert index(server) == []


def test_the_json_log_has_models_as_values(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "m", "INT32", 1)
    with ConchProcess(tmp_path / "models", "--log-format=json", log=tmp_path / "log", wait="") as server:
        server.until("/v2/health/ready")
        records = [json.loads(line) for line in server.text.splitlines()]
    (record,) = [record for record in records if record["message"] == "models"]
    assert record["models"] == [{"name": "m", "version": "1", "state": "READY", "reason": ""}]
    assert "block" not in record


def test_a_model_passed_as_the_repository_is_recognised(tmp_path: Path) -> None:
    write_python(tmp_path / "models", "m", ONE_INT, ECHO)
    server = ConchProcess(tmp_path / "models" / "m", log=tmp_path / "log", wait="")
    with pytest.raises(AssertionError), server:
        server.until("/v2/health/ready")
    assert server.process.wait(30) == 1
    assert "looks like a model, not a repository" in server.text
    assert f"--model-repository={tmp_path / 'models'}" in server.text


def test_what_is_wrong_with_a_folder_is_said_with_what_would_be_right(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_identity(models, "detector", "INT32", 1)
    for name, folder in ("named", "v1"), ("padded", "001"), ("bare", "variables"):
        write_config(models, name, f'backend: "identity" {ONE_INT}')
        (models / name / "1").rename(models / name / folder)
    (models / "unsorted").mkdir()
    (models / "unsorted" / "model.onnx").touch()
    (models / "saved" / "1" / "model.savedmodel").mkdir(parents=True)
    write_config(models, "alias", f'backend: "tensorrt_llm" {ONE_INT}')
    write_config(models, "typo", f'backend: "identiy" {ONE_INT}')  # codespell:ignore
    ends = f"input {tensor('IN', 'INT32', 1)}", f"output {tensor('OUT', 'INT32', 1)}"
    write_ensemble(models, "ensemble", *ends, ("detectr", {"INPUT0": "IN"}, {"OUTPUT0": "OUT"}))
    expected = {
        "named": "the name of the folder 'v1' is not just a number: rename it to '1'",
        "padded": "the name of the folder '001' is not just a number: rename it to '1'",
        "bare": "in a folder named after the version, such as '1'; found 'config.pbtxt', 'variables'",
        "unsorted": "'model.onnx' must be in a version folder: move it to '1/model.onnx'",
        "saved": "This server does not have it: 'openvino' reads a SavedModel; or convert the model to ONNX",
        "alias": "'tensorrt_llm', try specifying runtime on the model configuration. Did you mean 'tensorrtllm'?",
        "typo": "backend 'identiy', try specifying runtime on the model configuration. Did you mean 'identity'?",
        "ensemble": "'detectr' is not found; did you mean 'detector'?",
    }
    with ConchProcess(models, "--exit-on-error=false", log=tmp_path / "log", wait="live") as server:
        server.until_logged("failed to load 8 of 9 models: ")
        said = {row["name"]: row.get("reason", "") for row in index(server)}
    assert said.pop("detector") == ""
    assert {name: text for name, text in said.items() if expected[name] not in text} == {}
    assert "model.graphdef" not in said["unsorted"]


def test_verbosity_shows_requests_instances_and_reloads_and_can_be_changed(tmp_path: Path) -> None:
    write_identity(tmp_path / "models", "m", "INT32", 1)
    flags = (EXPLICIT, "--load-model=m", "--log-verbose=1")
    with ConchProcess(tmp_path / "models", *flags, log=tmp_path / "log") as server:
        server.until_logged(r"\"started instance 'm_0' \(CPU device 0\) in [\d.]+ s\"")
        get(server, "/v2/models/m/config")
        server.until_logged('"HTTP request: GET /v2/models/m/config"')
        with grpc.InferenceServerClient(server.grpc) as client:
            client.is_model_ready("m")
        server.until_logged('"gRPC request: /inference.GRPCInferenceService/ModelReady"')
        infer(server, "m")
        server.until_logged(
            '"request" .*protocol="http" model="m" version=1 status="OK".*requests_in_batch=1 .*total_us='
        )
        post(server, "/v2/repository/models/m/load")
        server.until_logged("model 'm' is unchanged; not reloading")
        post(server, "/v2/logging", {"log_verbose_level": 0})
        lines = len(server.text.splitlines())
        infer(server, "m")
        get(server, "/v2/models/m/config")
        post(server, "/v2/repository/models/m/unload")
        server.until_logged("successfully unloaded 'm'")
        (line,) = server.text.splitlines()[lines:]
        assert "successfully unloaded 'm'" in line
