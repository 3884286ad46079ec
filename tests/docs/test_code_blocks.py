"""The README and every page work by copy and paste: a new environment, pip 23.2, the wheel, and the text's commands."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, RUN, blocks_of, pages
from tests.support.kubernetes_programs import kubernetes_program

# The pip that Python 3.11 brings along, which is what many users have.
PIP = "pip==23.2.1"
# Build requirements, for a page that builds a package.
BUILD_TOOLS = ("hatchling",)


def in_a_separate_network(*command: str) -> list[str]:
    """The command that runs another in a new network namespace, where ports 8000 to 8002 are free."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--net", *as_root, *command]


def _can_unshare() -> bool:
    program = shutil.which("unshare")
    return bool(program) and subprocess.run(in_a_separate_network("true"), capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel of this checkout, installed by an old pip from the package index."""
    folder = tmp_path_factory.mktemp("docs")
    wheels, home = folder / "wheels", folder / "venv"
    quiet = ("--quiet", "--disable-pip-version-check")
    build = [sys.executable, "-m", "pip", "wheel", *quiet, "--no-deps", f"--wheel-dir={wheels}", str(ROOT)]
    subprocess.run(build, check=True, env={**os.environ, "CONCH_COMPILE": "no"})
    venv.create(home)
    subprocess.run([sys.executable, "-m", "pip", "--python", str(home), "install", *quiet, PIP], check=True)
    # Modules are compiled when they are imported, which most are not.
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--no-compile", *quiet]
    [wheel] = wheels.glob("*.whl")
    extras, others = _installed_by_pages()
    subprocess.run([*pip, f"{wheel}[{','.join(sorted(extras))}]", *sorted(others)], check=True)
    download = [str(home / "bin" / "python"), "-m", "pip", "download", *quiet, f"--dest={wheels}", *BUILD_TOOLS]
    subprocess.run(download, check=True)
    return home


def _installed_by_pages() -> tuple[set[str], set[str]]:
    """Extras and other packages that the pages tell readers to install, and nothing else."""
    extras: set[str] = set()
    others: set[str] = set()
    for text in (str(step["text"]) for page in pages() for step in steps_of(page)):
        if text.startswith("pip install "):
            for word in shlex.split(text, comments=True)[2:]:
                named = re.fullmatch(r"conch-server\[(.*)\]", word)
                if named:
                    extras.update(named[1].split(","))
                elif not word.startswith((".", "-", "wheels/")):
                    others.add(word)
    return extras, others


@pytest.fixture
def variables(environment: Path, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "CONCH", "VIRTUAL"))}
    helm = kubernetes_program("helm").parent  # which the pages about clusters ask for
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(environment.with_name("wheels"))}
    # Servers of other pages have the same ports, in other namespaces: conch ps must not take this page's for theirs.
    own = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_DATA_HOME": str(tmp_path / "data")}
    return {**kept, **offline, **own, "PATH": f"{environment / 'bin'}:{helm}:{os.environ['PATH']}"}


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """Where the reader is: a folder with the examples, as in a clone."""
    folder = tmp_path / "clone"
    folder.mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def steps_of(page: Path) -> list[dict[str, object]]:
    steps: list[dict[str, object]] = []
    for block in blocks_of(page):
        if block.language not in RUN or block.not_run:
            continue
        steps += [{"name": block.name, "kind": "console", "text": text, "expected": []} for text in block.before]
        if block.language == "python":
            text = "\n".join(block.lines)
            steps.append({"name": block.name, "kind": "python", "text": text, "expected": []})
        for command in block.commands() if block.language == "console" else ():
            # The environment has the package, built from the clone.
            text = command.text.replace("pip install '.[", "pip install 'conch-server[")
            steps.append({"name": block.name, "kind": "console", "text": text, "expected": command.expected})
    return steps


@pytest.mark.skipif(not _can_unshare(), reason="no network namespaces here: the ports in the text may be taken")
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_works_by_copy_and_paste(
    page: Path, environment: Path, variables: dict[str, str], workplace: Path
) -> None:
    steps = workplace.with_name("steps.json")
    steps.write_text(json.dumps(steps_of(page)))
    runner = [str(environment / "bin" / "python"), str(Path(__file__).with_name("run_page.py"))]
    command = in_a_separate_network(*runner, str(steps), str(workplace))
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_the_first_five_minutes_are_a_script_that_works_without_a_compiler(
    environment: Path, variables: dict[str, str], workplace: Path
) -> None:
    steps = [workplace / "examples" / "first_five_minutes.sh"]
    assert not list(environment.rglob("conch/**/*.so"))
    assert "examples/first_five_minutes.sh" in (ROOT / "README.md").read_text()
    done = subprocess.run(["bash", *steps], env={**variables, "CC": "no-compiler"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for printed in (
        '"class_name": "dent"',
        '"probabilities"',
        "Conch is an inference server",
        "[0.70710677,0.70710677]",
        "no server runs",
    ):
        assert printed in done.stdout
    assert (workplace / "demo-output" / "annotated.jpg").stat().st_size


def test_what_is_not_run_says_why() -> None:
    reasons = [block.not_run for page in pages() for block in blocks_of(page) if block.not_run]
    assert reasons
    assert all(len(reason.split()) > 2 for reason in reasons), reasons


def test_most_blocks_are_run() -> None:
    """But those that need what no test machine has, such as a cluster, a GPU or a registry."""
    blocks = [block for page in pages() for block in blocks_of(page) if block.language in RUN]
    possible = [block for block in blocks if not block.not_run.startswith("needs ")]
    assert len([block for block in possible if not block.not_run]) > len(possible) / 2


@pytest.mark.skipif(not _can_unshare(), reason="no network namespaces here")
def test_a_wrong_line_is_found(tmp_path: Path) -> None:
    steps = [
        {"name": "right", "kind": "console", "text": "echo took 12.5 ms", "expected": ["took 3 ms"]},
        {"name": "other", "kind": "console", "text": "echo one", "expected": ["two"]},
        {"name": "fails", "kind": "python", "text": "import there_is_no_such_module", "expected": []},
        {"name": "server", "kind": "console", "text": "conch serve --model-repository=missing", "expected": []},
    ]
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    runner = [sys.executable, str(Path(__file__).with_name("run_page.py"))]
    command = in_a_separate_network(*runner, str(tmp_path / "steps.json"), str(tmp_path))
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert [name for name, *_ in json.loads(done.stdout.splitlines()[-1])] == ["other", "fails", "server"]


def test_the_page_of_python_models_shows_the_example() -> None:
    example = (ROOT / "examples" / "python_models" / "app.py").read_text().partition("\n\n\nif __name__")[0]
    assert f"```python\n{example}\n```" in (ROOT / "docs" / "python-models.md").read_text()
