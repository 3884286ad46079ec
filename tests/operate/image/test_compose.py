"""deploy/compose.yaml and the files that its services mount."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.debian import debian_command

DEPLOY = Path(__file__).parents[3] / "deploy"
# Docker's own schema of compose files is part of its last release in Python.
SCHEMA_PACKAGE = "docker-compose==1.29.2"


def read(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("schema")
    command = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    if subprocess.run([sys.executable, *command, SCHEMA_PACKAGE], capture_output=True, check=False).returncode:
        pytest.skip(f"{SCHEMA_PACKAGE}, which has the schema, cannot be downloaded")
    (wheel,) = folder.glob("*.whl")
    document = json.loads(zipfile.ZipFile(wheel).read("compose/config/compose_spec.json"))
    document["properties"]["name"] = {"type": "string"}  # newer than the schema
    return document


@pytest.mark.parametrize("file", ["compose.yaml", "compose.gpu.yaml"])
def test_the_files_are_valid_by_dockers_schema(schema: Any, file: str) -> None:
    jsonschema.Draft7Validator(schema).validate(read(file))


def test_every_service_is_confined_and_has_a_health_check() -> None:
    for name, service in read("compose.yaml")["services"].items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert all(port.startswith(("127.0.0.1:", "${CONCH_BIND:-127.0.0.1}:")) for port in service["ports"]), name


def test_mounted_files_exist_and_volumes_are_defined() -> None:
    document = read("compose.yaml")
    sources = [volume.partition(":")[0] for service in document["services"].values() for volume in service["volumes"]]
    named = {source for source in sources if "/" not in source and "$" not in source}
    assert named == set(document["volumes"])
    assert [source for source in sources if source.startswith("./") and not (DEPLOY / source).exists()] == []


def test_prometheus_scrapes_and_alerts_services_of_the_file() -> None:
    services = read("compose.yaml")["services"]
    configuration = read("compose/prometheus/prometheus.yml")
    alertmanagers = configuration["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    targets = [target for job in configuration["scrape_configs"] for target in job["static_configs"][0]["targets"]]
    for host, _, port in (target.partition(":") for target in [*targets, *alertmanagers]):
        published = services["prometheus" if host == "localhost" else host]["ports"]
        assert any(address.endswith(f":{port}") for address in published), (host, port)


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("promtool", ("check", "config", "compose/prometheus/prometheus.yml")),
        ("amtool", ("check-config", "compose/alertmanager/alertmanager.yml")),
    ],
)
def test_their_own_programs_accept_the_configurations(program: str, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [*debian_command(program), *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_receiver_reads_its_configuration() -> None:
    command = ["alerts", "config", f"--config={DEPLOY / 'compose' / 'alerts.yaml'}", "--url=http://alerts:9096/"]
    environment = {**os.environ, "ALERTS_URL": "http://127.0.0.1:9/"}
    done = subprocess.run([sys.executable, "-m", "conch", *command], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
