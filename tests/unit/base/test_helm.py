"""Charts are rendered alike by the program `helm` and by the package helm-python-sdk."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch.base import helm
from conch.base.errors import Unavailable
from conch.base.extras import install_command
from conch.base.helm import HelmError, helm_is_installed, merge_values, render_chart
from tests.support.helm_process import require_helm
from tests.support.kubernetes_programs import kubernetes_program

RENDERERS = ("program", "package")
TEMPLATE = """kind: {{ .Values.kind }}
metadata: {name: {{ .Release.Name }}, namespace: {{ .Release.Namespace }}}
values: {{ toJson (omit .Values "kind") }}
---
kind: Second
"""
VALUES = "kind: First\na: {b: 1, c: 2}\nlist: [x]\n"


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    folder = tmp_path / "demo"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: demo\nversion: 1.0.0\n")
    (folder / "values.yaml").write_text(VALUES)
    (folder / "templates" / "both.yaml").write_text(TEMPLATE)
    (folder / "templates" / "none.yaml").write_text("{{ if .Values.none }}kind: None{{ end }}\n")
    return folder


@pytest.fixture(params=RENDERERS)
def renderer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One of the two is installed."""
    if request.param == "program":
        monkeypatch.setenv("PATH", str(kubernetes_program("helm").parent))
        monkeypatch.setattr(helm, "_LIBRARY", "no_such_package")
    else:
        require_helm()
        monkeypatch.setenv("PATH", os.devnull)
    return str(request.param)


def documents(templates: dict[str, str]) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(templates["demo/templates/both.yaml"]) if document]


@pytest.mark.usefixtures("renderer")
def test_values_and_assignments_are_those_of_helm(chart: Path) -> None:
    first, second = documents(
        render_chart(
            chart,
            {"kind": "Given", "a": {"c": None}, "list": ["y", "z"]},
            name="one",
            namespace="two",
            assignments=[r"a.x\.y/z=true,a.b=3", "names={p,q}"],
            text_assignments=["text=24"],
        )
    )
    assert second == {"kind": "Second"}
    assert first["metadata"] == {"name": "one", "namespace": "two"}
    assert first["kind"] == "Given"
    values = {"a": {"b": 3, "x.y/z": True}, "list": ["y", "z"], "names": ["p", "q"], "text": "24"}
    assert first["values"] == values


@pytest.mark.usefixtures("renderer")
def test_later_assignments_change_parts_of_earlier_ones(chart: Path) -> None:
    (first, _) = documents(render_chart(chart, {}, assignments=["list[0].a=1", "list[0].b=2"]))
    assert first["values"]["list"] == [{"a": 1, "b": 2}]


def test_parts_of_a_list_of_the_values(chart: Path, renderer: str) -> None:
    if renderer == "package":  # which cannot change them, and must not lose the rest
        with pytest.raises(HelmError, match=r"--set list\[…\]: a file of values has the list; change it there"):
            render_chart(chart, {"list": ["y", "z"]}, assignments=["a.b=1,list[0]=x"])
        return
    (first, _) = documents(render_chart(chart, {"list": ["y", "z"]}, assignments=["a.b=1,list[0]=x"]))
    assert first["values"]["list"] == ["x", "z"]


@pytest.mark.usefixtures("renderer")
def test_the_message_of_a_refusal_is_that_of_helm(chart: Path) -> None:
    (chart / "templates" / "both.yaml").write_text('{{ fail "nothing works" }}')
    with pytest.raises(HelmError, match=r"execution error at \(demo/templates/both\.yaml:1:3\): nothing works$"):
        render_chart(chart, {})
    with pytest.raises(HelmError, match='key "name" has no value'):
        render_chart(chart, {}, assignments=["name"])


def test_how_to_install_helm(chart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr(helm, "_LIBRARY", "no_such_package")
    assert not helm_is_installed()
    command = re.escape(install_command("charts"))
    with pytest.raises(Unavailable, match=rf"Helm is missing.*helm\.sh.*{command}"):
        render_chart(chart, {})


def test_a_template_that_does_not_end(chart: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "helm"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(helm, "_TIMEOUT_S", 0.1)
    with pytest.raises(HelmError, match=r"did not finish within 0\.1 s"):
        render_chart(chart, {})


def test_later_documents_win_and_null_stays() -> None:
    merged = merge_values([{"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 3}, "d": [2], "e": None}])
    assert merged == {"a": {"b": 3, "c": 2}, "d": [2], "e": None}
