"""deploy/Dockerfile without building it: it agrees with the chart, the extras, the workflow and the page."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from conch.check.deployment.dockerfiles import Stage, stages_of
from conch.check.source import SourceFile
from conch.operate.deployment.chart import release_objects
from conch.server.options.server_options import OWN_FLAGS
from tests.support.helm_process import require_helm

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
PAGE = (ROOT / "docs" / "container.md").read_text()


@pytest.fixture(scope="module")
def stages() -> list[Stage]:
    source = SourceFile.read(DOCKERFILE)
    assert source is not None
    return stages_of(source)


def texts(stage: Stage, name: str) -> list[str]:
    return [instruction.text for instruction in stage.instructions if instruction.name == name]


def test_the_last_stage_needs_no_shell_and_runs_as_the_charts_user(stages: list[Stage]) -> None:
    last = stages[-1]
    assert texts(last, "RUN") == []
    assert json.loads(texts(last, "ENTRYPOINT")[-1]) == ["conch"]
    assert json.loads(texts(last, "CMD")[-1]) == ["serve"]
    assert json.loads(texts(last, "HEALTHCHECK")[-1].partition(" CMD ")[2]) == ["conch", "health"]
    user, _, group = texts(last, "USER")[-1].partition(":")
    require_helm()
    (workload,) = (document for document in release_objects({}, "demo") if document["kind"] == "Deployment")
    pod = workload["spec"]["template"]["spec"]
    assert (int(user), group) == (pod["securityContext"]["runAsUser"], "0")
    ports = {port["containerPort"] for port in pod["containers"][0]["ports"]}
    assert {int(port) for port in texts(last, "EXPOSE")[-1].split()} == ports


def test_its_variables_are_flags_of_the_server(stages: list[Stage]) -> None:
    variables = set(re.findall(r"\b(CONCH_\w+)=", texts(stages[-1], "ENV")[-1]))
    assert variables
    assert variables <= {flag.variable for flag in OWN_FLAGS}


def test_flavours_are_the_same_everywhere_and_their_extras_exist(stages: list[Stage]) -> None:
    install = next(text for text in texts(stages[0], "RUN") if "--python /opt/conch" in text)
    arms = re.findall(r"([\w |]+)\) extras=\"?([\w,${}-]*)", install.partition('" in')[2])
    flavours = {name.strip(): extras for names, extras in arms for name in names.split("|")}
    extras = {
        extra.replace("${FLAVOUR}", flavour)
        for flavour, extras in flavours.items()
        for extra in extras.split(",")
        if extra
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"remote", "monitoring", *extras} <= set(project["optional-dependencies"])
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert set(workflow["jobs"]["image"]["strategy"]["matrix"]["flavour"]) == set(flavours)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.partition("| Flavour |")[2], re.MULTILINE)[: len(flavours)]) == set(
        flavours
    )
    assert f"must be {', '.join(list(flavours)[:-1])} or {list(flavours)[-1]}" in install


def test_every_argument_is_on_the_page() -> None:
    arguments = set(re.findall(r"^ARG (\w+)", DOCKERFILE.read_text(), re.MULTILINE))
    table = PAGE.partition("| `--build-arg` |")[2].partition("\n\n")[0]
    assert arguments == set(re.findall(r"(?:^\| |, )`([A-Z]+)`", table, re.MULTILINE))


def test_a_build_sends_what_it_copies_and_no_more() -> None:
    """tests/test_wheel.py builds a wheel of no more; .git, environments and tests are not in the context."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    sent = {line[1:] for line in lines if line.startswith("!")}
    build = {"hatch_build.py", "pyproject.toml", "tools/compile_modules.py"}
    assert sent == {"LICENSE", "README.md", "dist/*.whl", "src", "deploy/helm/conch", "examples/new", *build}
