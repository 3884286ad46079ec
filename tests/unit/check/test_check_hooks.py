"""The pre-commit hook and the GitHub action of `conch check`, run as their programs run them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.check.repository import TENSORS, write, write_python

ROOT = Path(__file__).parents[3]
HOOKS = ROOT / ".pre-commit-hooks.yaml"
ACTION = ROOT / "deploy" / "check-action" / "action.yml"

pytestmark = pytest.mark.slow


def environment(tmp_path: Path) -> dict[str, str]:
    """Git without the user's settings, with this environment's programs first on PATH."""
    folder = Path(sys.executable).parent
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))},
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PRE_COMMIT_HOME": str(tmp_path / "cache"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
    }


def run(command: list[str], folder: Path, env: dict[str, str], expected: int = 0) -> str:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def repository(folder: Path, env: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    run(["git", "init", "-q", "-b", "main"], folder, env)
    return folder


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_hook_refuses_a_commit_with_errors(tmp_path: Path) -> None:
    pytest.importorskip("pre_commit")
    env = environment(tmp_path)
    hooks = repository(tmp_path / "conch", env)
    shutil.copy(HOOKS, hooks)
    run(["git", "add", "-A"], hooks, env)
    run(["git", "commit", "-q", "-m", "hooks"], hooks, env)
    revision = run(["git", "rev-parse", "HEAD"], hooks, env).strip()

    mine = repository(tmp_path / "mine", env)
    # The installed command instead of an environment that pre-commit would build for minutes.
    hook = {"id": "conch-check", "language": "system", "additional_dependencies": []}
    config = {"repos": [{"repo": str(hooks), "rev": revision, "hooks": [hook]}]}
    write(mine / ".pre-commit-config.yaml", yaml.safe_dump(config))
    write_python(mine / "models", "m", TENSORS + "max_batchsize: 4")
    write(mine / "notes.txt", "not checked")
    run([sys.executable, "-m", "pre_commit", "install"], mine, env)
    run(["git", "add", "-A"], mine, env)
    refused = subprocess.run(
        ["git", "commit", "-m", "model"], cwd=mine, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode == 1
    assert "error[config-unknown] models/m/config.pbtxt:4:1" in refused.stdout + refused.stderr

    write_python(mine / "models", "m", TENSORS)
    run(["git", "add", "-A"], mine, env)
    run(["git", "commit", "-q", "-m", "model"], mine, env)


def steps() -> dict[str, dict[str, object]]:
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    assert action["runs"]["using"] == "composite"
    return {step["name"]: step for step in action["runs"]["steps"]}


@pytest.mark.parametrize(("strict", "status"), [("false", 0), ("true", 1)])
def test_the_check_of_the_action(strict: str, status: int, tmp_path: Path) -> None:
    step = steps()["Check"]
    programs = tmp_path / "runner" / "conch" / "bin"
    programs.mkdir(parents=True)
    (programs / "conch").symlink_to(Path(sys.executable).parent / "conch")
    write(tmp_path / "work" / "a b.sh", "echo\n")
    write(tmp_path / "work" / "deploy" / "run.sh", "ssh -N -L 0.0.0.0:9400:gpu:9400 host\n")
    write(tmp_path / "work" / "models.yaml", "services:\n  a: {image: a}\n")
    given = {
        "PATHS": "deploy models.yaml",
        "STRICT": strict,
        "IGNORE": "image-latest",
        "RUNNER_TEMP": str(tmp_path / "runner"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
    }
    declared = step["env"]
    assert isinstance(declared, dict)
    assert declared.keys() <= given.keys()
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", str(step["run"])]
    shown = run(command, tmp_path / "work", environment(tmp_path) | given, status)
    (line,) = shown.splitlines()
    assert line.startswith("::warning file=deploy/run.sh,line=1,col=8,title=tunnel-public::")
    output = dict(output_line.split("=", 1) for output_line in (tmp_path / "output").read_text().splitlines())
    results = json.loads(Path(output["sarif"]).read_text())["runs"][0]["results"]
    assert [result["ruleId"] for result in results] == ["tunnel-public"]


@pytest.mark.parametrize(
    ("version", "charts", "wanted"),
    [("", "false", f"{ROOT}/deploy/check-action/../..[check]"), ("1.2", "true", "conch-server[charts]==1.2")],
)
def test_the_installation_of_the_action(version: str, charts: str, wanted: str, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    # A python3 whose `-m venv FOLDER` makes a pip that prints its arguments.
    fake = '#!/bin/sh\nmkdir -p "$3/bin"\nprintf \'#!/bin/sh\\necho "$@"\\n\' > "$3/bin/pip"\nchmod +x "$3/bin/pip"\n'
    write(programs / "python3", fake).chmod(0o755)
    env = environment(tmp_path) | {
        "VERSION": version,
        "CHARTS": charts,
        "ACTION_PATH": str(ACTION.parent),
        "RUNNER_TEMP": str(tmp_path),
    }
    env["PATH"] = f"{programs}{os.pathsep}{env['PATH']}"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", str(steps()["Install conch"]["run"])]
    assert run(command, tmp_path, env).split() == ["install", "--quiet", wanted]


def test_inputs_reach_the_shell_as_variables_only() -> None:
    for step in steps().values():
        assert "${{" not in str(step.get("run", ""))


def test_the_hook_selects_the_files_that_are_checked() -> None:
    import re

    (hook,) = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))
    files = re.compile(hook["files"])
    for name in ("m/config.pbtxt", "Dockerfile", "a/Containerfile.gpu", "m/1/model.py", "b.yml", "labels.txt", "a.tf"):
        assert files.search(name), name
    for name in ("notes.txt", "a.c", "Dockerfiles/readme"):
        assert not files.search(name), name
