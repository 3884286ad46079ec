"""What is not checked is reported once: files that cannot be read or parsed, and rules that need a missing package."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conch.base import helm
from conch.base.extras import install_command
from conch.check import source
from conch.check.check_paths import check_paths
from conch.check.command import check
from conch.check.deployment import schema
from conch.check.finding import Severity
from tests.unit.check.repository import findings_of, ids, only_finding, write

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: a}
spec:
  replica: 1
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec: {containers: [{name: a, image: "r.io/a:1"}]}
"""
ALERT = "groups:\n- {name: g, rules: [{alert: A, expr: conch_nothing > 1}]}\n"
# Missing package → the rule that says so, and what installs it.
MISSING = {
    "kubernetes_validate": ("schema-unchecked", install_command("check")),
    "jsonschema": ("schema-unchecked", install_command("check")),
    "helm_python": ("chart-unrendered", install_command("charts")),
}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Remove a package from the environment."""
    cached = (schema._schemas, schema._definitions, schema._validator)  # read once in a process

    def remove(package: str) -> None:
        monkeypatch.setitem(sys.modules, package, None)
        if package == "helm_python":
            monkeypatch.setattr(helm, "_LIBRARY", "no_such_package")
            monkeypatch.setenv("PATH", os.devnull)

    for function in cached:
        function.cache_clear()
    yield remove
    for function in cached:
        function.cache_clear()


def deployments(root: Path) -> Path:
    """Two folders, each with two manifests, rules and a chart."""
    for folder in ("one", "two"):
        for name in ("a", "b"):
            write(root / folder / f"{name}.yaml", DEPLOYMENT.replace("replica:", "replicas:"))
        write(root / folder / "rules.yaml", ALERT.replace("conch_nothing > 1", "nv_gpu_utilization > 0.9"))
        write(root / folder / "chart" / "Chart.yaml", f"apiVersion: v2\nname: {folder}\nversion: 1.0.0\n")
    return root


@pytest.mark.parametrize("package", MISSING)
def test_a_missing_package_is_reported_once(
    package: str, tmp_path: Path, without: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    root = deployments(tmp_path)
    without(package)
    assert check(["--strict", "--format=json", str(root / "one"), str(root / "two")]) == 0  # despite the notice
    (reported,) = [
        finding for finding in json.loads(capsys.readouterr().out)["findings"] if finding["rule"] == MISSING[package][0]
    ]
    assert package.partition("_")[0] in reported["message"]
    assert MISSING[package][1] in reported["cure"]
    assert reported["severity"] == "notice"


def test_the_reader_of_yaml_is_reported_once(tmp_path: Path) -> None:
    root = deployments(tmp_path)
    program = (
        "import sys; sys.modules['yaml'] = None\n"
        "from conch.check.command import check\n"
        "sys.exit(check(['--strict', '--format=github', *sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", program, str(root / "one"), str(root / "two")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("title=monitoring-unchecked") == 1
    assert "the package yaml is not installed" in done.stdout
    assert install_command("monitoring") in done.stdout


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github"])
def test_every_format_reports_a_missing_package(
    form: str, tmp_path: Path, without: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.yaml", DEPLOYMENT)
    without("kubernetes_validate")
    assert check([f"--format={form}", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("the package kubernetes_validate is not installed") == 1
    assert install_command("check") in shown
    assert "schema-unchecked" in shown


def test_other_errors_still_fail_without_a_package(tmp_path: Path, without: Callable[[str], None]) -> None:
    write(tmp_path / "a.yaml", DEPLOYMENT.replace("app: a}}\n  t", "app: b}}\n  t"))
    without("kubernetes_validate")
    assert check([str(tmp_path)]) == 1
    assert ids(tmp_path) == ["schema-unchecked", "selector-mismatch"]


def test_a_selected_rule_without_its_package_is_not_silent(
    tmp_path: Path, without: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.yaml", DEPLOYMENT)
    without("kubernetes_validate")
    check(["--rule=manifest-invalid", str(tmp_path)])
    assert "notice[schema-unchecked]" in capsys.readouterr().out
    check(["--rule=tunnel-public", str(tmp_path)])
    assert capsys.readouterr().out.startswith("no problems")
    check(["--rule=manifest-invalid", "--ignore=schema-unchecked", str(tmp_path)])
    assert capsys.readouterr().out.startswith("no problems")


def test_a_field_that_only_the_schemas_know(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", DEPLOYMENT)
    assert ids(tmp_path) == ["manifest-invalid"]


UNCHECKED = [
    ("latin.yaml", "kind: Caf\u00e9\n".encode("latin-1"), "is not UTF-8 text: byte 9 is invalid"),
    ("large.json", b"[" + b" " * (5 << 20) + b"]", "has 5242882 bytes; files over 4194304 bytes are not checked"),
    ("model.bin.md", bytes(range(256)), "is not UTF-8 text: byte 128 is invalid"),
    ("utf16.tf", 'a = "b"'.encode("utf-16"), "is not UTF-8 text: byte 0 is invalid"),
    ("client.py", b"x = '\xff'", "is not UTF-8 text: byte 5 is invalid"),
]


@pytest.mark.parametrize(("name", "contents", "message"), UNCHECKED, ids=[row[0] for row in UNCHECKED])
def test_files_that_are_not_text(name: str, contents: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, contents)
    for checked in (tmp_path, path):
        finding = only_finding(checked)
        assert (finding.rule.id, finding.message) == ("file-unchecked", f"{name} {message}")


def test_links_that_form_a_loop(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to("b.yaml")
    (tmp_path / "b.yaml").symlink_to("a.yaml")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "gone.md").symlink_to("nothing")
    assert [finding.message for finding in findings_of(tmp_path)] == [
        "a.yaml cannot be read: Too many levels of symbolic links",
        "b.yaml cannot be read: Too many levels of symbolic links",
        "gone.md cannot be read: No such file or directory",
    ]


def test_a_name_that_is_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.sh")).write_text("tritonserver --cpu-only\n")
    for form in ("text", "json", "sarif", "github"):
        assert check([f"--format={form}", str(tmp_path)]) == 0
        assert "the name of a file is not UTF-8" in capsys.readouterr().out


def test_control_characters_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run.sh", "tritonserver --\x1b[2Jcpu-only\n")
    assert check([str(tmp_path)]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_a_pipe_as_the_path(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="pipe' is not a regular file"):
        check_paths([tmp_path / "pipe"])


SYNTAX = [
    ("a.yaml", "kind: Deployment\nmetadata:\n\tname: a\n", 3, "invalid YAML"),
    ("a.yaml", "kind: [\n", 2, "invalid YAML"),
    ("a.yml", "services:\n  a: {image: b\n", 3, "invalid YAML"),
    ("a.json", '{"panels": [\n  {"expr": "up",}\n]}', 2, "invalid JSON"),
    ("a.json", '{"expr": ' + "[" * 100_000, 1, "invalid JSON: maximum recursion depth exceeded"),
    ("a.yaml", "kind: " + "[" * 20_000, 1, "invalid YAML: maximum recursion depth exceeded"),
]


@pytest.mark.parametrize(("name", "text", "line", "message"), SYNTAX, ids=range(len(SYNTAX)))
def test_files_with_errors_of_syntax(name: str, text: str, line: int, message: str, tmp_path: Path) -> None:
    write(tmp_path / name, text.encode())
    finding = only_finding(tmp_path)
    assert (finding.rule.id, finding.place.line) == ("file-syntax", line)
    assert finding.message.startswith(f"{name}: {message}")


@pytest.mark.parametrize(
    "text",
    [
        "kind: {{ .Values.kind }}\n{{- if .a }}\nb: 1\n{{- end }}\n",
        "{% if a %}\nkind: Deployment\n{% endif %}\n",
        "kind: @KIND@\n",
        "a: [\n",  # nothing that is read
    ],
)
def test_templates_are_omitted(text: str, tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", text)
    assert findings_of(tmp_path) == []


def test_tags_of_other_programs(tmp_path: Path) -> None:
    write(tmp_path / "compose.override.yaml", "services:\n  a:\n    image: a:1\n    ports: !reset []\n")
    assert [(finding.rule.id, finding.rule.severity) for finding in findings_of(tmp_path)] == [
        ("file-unchecked", Severity.NOTICE)
    ]


def test_every_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Many findings in each file, of which the report shows the lines.
    for number in range(20):
        write(tmp_path / f"run{number}.sh", "tritonserver --model-repository=/m --no-such-flag\n" * 200)
        write(tmp_path / f"code{number}.py", "import triton_python_backend_utils as u\n" + "u.Tensr\n" * 50)
        write(tmp_path / f"chart{number}.yaml", "env:\n  shm-size: 5g\n" * 50)
    reads: dict[Path, int] = {}
    opened = source.SourceFile.open

    def counted(path: Path) -> source.SourceFile:
        reads[path] = reads.get(path, 0) + 1
        return opened(path)

    monkeypatch.setattr(source.SourceFile, "open", counted)
    assert check([str(tmp_path)]) == 1
    assert len(reads) == 60
    assert set(reads.values()) == {1}
