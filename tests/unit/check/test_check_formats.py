"""`conch check`: SARIF, annotations of GitHub, single files, the standard input, comments that suppress findings."""

import io
import json
from pathlib import Path
from urllib.parse import unquote

import pytest

from conch.check.check_paths import KINDS
from conch.check.command import check
from conch.check.finding import rules
from tests.unit.check.repository import TENSORS, write, write_python

BAD_CONFIG = TENSORS + "max_batchsize: 4"
TUNNEL = "ssh -N -L 0.0.0.0:9400:gpu:9400 host\n"


def sarif(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    check(["--format", "sarif", *arguments])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert isinstance(run, dict)
    return run


def test_sarif_has_what_its_schema_requires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path / "a model's", "m", BAD_CONFIG)
    assert check(["--format", "sarif", "."]) == 1
    log = json.loads(capsys.readouterr().out)
    assert (log["version"], log["$schema"]) == ("2.1.0", "https://json.schemastore.org/sarif-2.1.0.json")
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "conch check"
    assert [rule["id"] for rule in driver["rules"]] == [*rules()]
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["help"]["text"]
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    (result,) = run["results"]
    assert result["message"]["text"]
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "config-unknown"
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "a%20model%27s/m/config.pbtxt"},
        "region": {"startLine": 4, "startColumn": 1},
    }


def test_sarif_of_a_folder_and_of_a_path_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_python(tmp_path, "m")
    (tmp_path / "m" / "v2").mkdir()
    (result,) = sarif([str(tmp_path)], capsys)["results"]  # type: ignore[misc]
    physical = result["locations"][0]["physicalLocation"]
    assert unquote(physical["artifactLocation"]["uri"]) == f"file://{tmp_path}/m/v2"
    assert "region" not in physical  # lines begin with 1


def test_related_places_in_sarif(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.yaml", "image: r.io/a/b:2\n")
    write(tmp_path / "a.md", "`r.io/a/b:1`\n")
    (result,) = sarif([str(tmp_path)], capsys)["results"]  # type: ignore[misc]
    (related,) = result["relatedLocations"]
    assert related["id"] == 1
    assert related["physicalLocation"]["region"] == {"startLine": 1, "startColumn": 11}


def test_sarif_recognises_a_finding_whose_line_has_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "run.sh", TUNNEL)
    prints = []
    for text in (TUNNEL, "\n" + TUNNEL):
        path.write_text(text)
        (result,) = sarif([str(path)], capsys)["results"]  # type: ignore[misc]
        prints.append(result["partialFingerprints"])
    assert prints[0] == prints[1]


def test_annotations_of_github_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "100%, a:b"
    write(folder / "run.sh", TUNNEL)
    assert check(["--format", "github", "--strict", str(folder)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    escaped = str(folder).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
    assert line.startswith(f"::warning file={escaped}/run.sh,line=1,col=8,title=tunnel-public::ssh -L 0.0.0.0:9400")
    assert line.count("%0A") == 2  # message, why and remedy


def test_findings_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run.sh", TUNNEL)
    written = tmp_path / "out.sarif"
    assert check(["--format", "sarif", "--output", str(written), str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(written.read_text())["runs"][0]["results"][0]["ruleId"] == "tunnel-public"


def test_a_file_of_a_model_stands_for_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_python(tmp_path, "m", BAD_CONFIG)
    write_python(tmp_path, "other", BAD_CONFIG)
    for file in ("config.pbtxt", "1/model.py"):
        assert check([str(model / file)]) == 1
        shown = capsys.readouterr().out
        assert f"{model}/config.pbtxt:4:1" in shown
        assert "1 error in 1 model and 0 other files" in shown


def test_files_are_checked_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = write(tmp_path / "chart" / "values.yaml", "image: r.io/a/b:2\n")
    text = write(tmp_path / "README.md", "`r.io/a/b:1`\n")
    assert check([str(values), str(text)]) == 0
    assert "image-tag" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "text", "rule"),
    [
        ("config", 'backend: "python"\nmax_batchsize: 4\n', "config-unknown"),
        ("dockerfile", "FROM scratch\nCOPY a /a\n", "image-scratch"),
        ("json", '{"panels": [{"targets": [{"expr": "nv_inference_cuont"}]}]}', "query-no-data"),
        ("markdown", "`conch serve --model-repo=/m`\n", "flag-unknown"),
        ("python", "import triton_python_backend_utils as u\nu.Tensr\n", "python-api"),
        ("shell", TUNNEL, "tunnel-public"),
        ("systemd", f"[Service]\nExecStart=/usr/bin/{TUNNEL}", "tunnel-public"),
        ("terraform", "enable_a = false\na_config = {\n}\n", "terraform-disabled"),
        ("yaml", "services:\n  a: {image: a}\n", "image-latest"),
    ],
)
def test_the_standard_input(
    kind: str, text: str, rule: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kind in KINDS
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    check(["--kind", kind, "-"])
    shown = capsys.readouterr().out
    assert f"[{rule}] <stdin>:" in shown
    assert "| " in shown  # the line


@pytest.mark.parametrize(
    "arguments",
    [
        ["-", "a"],
        ["--fix", "-"],
        ["--kind", "cobol", "-"],
        ["--output", "a", "."],
        ["--explain", "nothing"],
        ["--format=x", "."],
    ],
)
def test_wrong_options(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check(arguments)
    assert ended.value.code == 2


def test_a_rule_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["--explain", "tunnel-public"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("warning[tunnel-public] Tunnel that is open to the network\n  why: ")
    assert "conch: ignore[tunnel-public]" in shown


@pytest.mark.parametrize("rule", rules().values(), ids=rules())
def test_every_rule_has_an_explanation(rule: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(["--explain", rule.id]) == 0  # type: ignore[attr-defined]
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_comments_suppress_findings(tmp_path: Path) -> None:
    path = write(tmp_path / "run.sh", f"# conch: ignore[tunnel-public] a test\n{TUNNEL}")
    assert check(["--strict", str(path)]) == 0
    path.write_text(f"# conch: ignore[image-tag, tunnel-public]\n\n{TUNNEL}")
    assert check(["--strict", str(path)]) == 1
    path.write_text(f"{TUNNEL.rstrip()}  # conch: ignore[image-tag]\n")
    assert check(["--strict", str(path)]) == 1
