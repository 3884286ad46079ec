"""Dashboards and rule files as a whole."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from conch.base.yaml_documents import load_documents
from conch.operate.monitoring.commands.translate import translate
from conch.operate.monitoring.translate.dialects import Dialect
from conch.operate.monitoring.translate.document import QueryTranslation, Translator


def panel(expr: str, unit: str, **more: Any) -> dict[str, Any]:
    steps = [{"color": "green", "value": None}, {"color": "red", "value": 80}]
    defaults = {"unit": unit, "min": 0, "max": 100, "thresholds": {"mode": "absolute", "steps": steps}}
    target = {"refId": "A", "expr": expr, "legendFormat": "{{Hostname}} {{ gpu }}"}
    return {"title": "P", "type": "timeseries", "fieldConfig": {"defaults": defaults}, "targets": [target], **more}


def translated(document: dict[str, Any], *, old: str = "dcgm-legacy", new: str = "dcgm-4.7") -> list[QueryTranslation]:
    translator = Translator(old, new)  # type: ignore[arg-type]
    translator.translate(document)
    return translator.outcomes


def test_a_panel_in_the_unit_of_its_metric_gets_the_new_unit() -> None:
    gauge = panel("DCGM_FI_DEV_GPU_UTIL", "percent")
    [outcome] = translated({"panels": [gauge]})
    assert outcome.status == "translated"
    assert gauge["targets"][0] == {
        "refId": "A",
        "expr": "DCGM_FI_DEV_GPU_UTIL_RATIO",
        "legendFormat": "{{hostname}} {{gpu}}",
    }
    defaults = gauge["fieldConfig"]["defaults"]
    assert (defaults["unit"], defaults["min"], defaults["max"]) == ("percentunit", 0, 1)
    assert [step["value"] for step in defaults["thresholds"]["steps"]] == [None, 0.8]


@pytest.mark.parametrize("unit", ["short", "watt", "none"])
def test_a_panel_in_another_unit_keeps_its_values(unit: str) -> None:
    gauge = panel("DCGM_FI_DEV_GPU_UTIL", unit)
    translated({"panels": [gauge]})
    assert gauge["targets"][0]["expr"] == "DCGM_FI_DEV_GPU_UTIL_RATIO * 100"
    assert gauge["fieldConfig"]["defaults"]["unit"] == unit
    assert gauge["fieldConfig"]["defaults"]["max"] == 100


def test_queries_of_different_factors_keep_their_values() -> None:
    gauge = panel("DCGM_FI_DEV_GPU_UTIL", "percent")
    gauge["targets"].append({"refId": "B", "expr": "DCGM_FI_DEV_GPU_TEMP"})
    translated({"panels": [{"title": "row", "type": "row", "panels": [gauge]}]})
    assert [target["expr"] for target in gauge["targets"]] == [
        "DCGM_FI_DEV_GPU_UTIL_RATIO * 100",
        "DCGM_FI_DEV_GPU_TEMP_CELSIUS",
    ]


def test_variables_and_annotations_are_translated() -> None:
    query = 'label_values(DCGM_FI_DEV_FB_FREE{Hostname=~"$Hostname"}, Hostname)'
    dashboard = {
        "panels": [],
        "templating": {
            "list": [
                {"name": "a", "type": "query", "query": {"query": query, "refId": "x"}, "definition": query},
                {"name": "b", "type": "query", "query": "query_result(DCGM_FI_DEV_GPU_UTIL)"},
                {"name": "c", "type": "query", "query": "label_values(job)"},
                {"name": "d", "type": "custom", "query": "1,2"},
                {"name": "e", "type": "query", "query": 'label_values({__name__=~"DCGM_FI_.*"}, Hostname)'},
            ]
        },
        "annotations": {"list": [{"name": "hot", "expr": "DCGM_FI_DEV_GPU_TEMP > 80"}]},
    }
    outcomes = translated(dashboard)
    assert {outcome.status for outcome in outcomes} == {"translated"}
    new = 'label_values(DCGM_FI_DEV_FB_FREE_BYTES{hostname=~"$Hostname"}, hostname)'
    variables = dashboard["templating"]["list"]  # type: ignore[call-overload]
    assert variables[0]["query"]["query"] == variables[0]["definition"] == new
    assert [variable["query"] for variable in variables[1:]] == [
        "query_result(DCGM_FI_DEV_GPU_UTIL_RATIO * 100)",
        "label_values(job)",
        "1,2",
        'label_values({__name__=~"DCGM_FI_.*"}, hostname)',
    ]
    assert dashboard["annotations"]["list"][0]["expr"] == "DCGM_FI_DEV_GPU_TEMP_CELSIUS > 80"  # type: ignore[call-overload]


RULES = """
groups:
- name: gpu
  rules:
  - alert: Full
    expr: DCGM_FI_DEV_FB_USED > 1000
    annotations: {summary: "{{ $labels.Hostname }} uses {{ $value }} MiB"}
  - record: gpu:util
    expr: avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)
  - alert: Broken
    expr: DCGM_FI_DEV_FAN_SPEED > 1
  - alert: Down
    expr: up == 0
"""


def test_alerts_compare_in_the_new_unit_and_records_keep_theirs() -> None:
    [loaded] = load_documents(RULES)
    document = loaded.value
    outcomes = translated(document)
    assert [outcome.status for outcome in outcomes] == ["translated", "translated", "no counterpart", "unchanged"]
    rules = document["groups"][0]["rules"]
    assert rules[0]["expr"] == "DCGM_FI_DEV_FB_USED_BYTES > 1048576000"
    assert rules[0]["annotations"]["summary"] == "{{ $labels.hostname }} uses {{ $value }} MiB"
    assert "$value is now 1.04858e+06 times" in outcomes[0].reason
    assert rules[1]["expr"] == "avg by (hostname) (DCGM_FI_DEV_GPU_UTIL_RATIO) * 100"
    assert rules[2]["expr"] == "DCGM_FI_DEV_FAN_SPEED > 1"


def test_a_way_there_and_back_restores_a_dashboard() -> None:
    dashboard = {"panels": [panel("max by (Hostname) (DCGM_FI_DEV_FB_USED)", "mbytes")]}
    before = json.loads(json.dumps(dashboard))
    translated(dashboard)
    assert dashboard != before
    translated(dashboard, old="dcgm-4.7", new="dcgm-legacy")
    before["panels"][0]["targets"][0]["legendFormat"] = "{{Hostname}} {{gpu}}"
    assert dashboard == before


def test_unknown_documents_are_refused() -> None:
    for document in ([], {"apiVersion": "v1", "kind": "Service"}, "text"):
        with pytest.raises(ValueError, match="dashboard"):
            translated(document)  # type: ignore[arg-type]


def test_the_command_writes_the_document_and_reports(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "rules.yaml"
    source.write_text(RULES)
    names = ["--from", "dcgm-legacy", "--to", "dcgm-4.7"]
    assert translate([str(source), *names]) == 1
    output = capsys.readouterr()
    assert "1048576000" in output.out
    assert "4 queries, 1 without a translation" in output.err
    assert "DCGM_FI_DEV_FAN_SPEED: no counterpart in dcgm-4.7" in output.err
    assert translate([str(source), *names, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [query["status"] for query in report["queries"]].count("no counterpart") == 1
    assert translate(["--query", "DCGM_FI_DEV_GPU_UTIL / 100", *names]) == 0
    assert capsys.readouterr().out == "DCGM_FI_DEV_GPU_UTIL_RATIO\n"
    result = tmp_path / "out.json"
    source.write_text(json.dumps({"panels": [panel("DCGM_FI_DEV_GPU_TEMP", "celsius")]}))
    assert translate([str(source), *names, "--output", str(result)]) == 0
    assert json.loads(result.read_text())["panels"][0]["targets"][0]["expr"] == "DCGM_FI_DEV_GPU_TEMP_CELSIUS"


def test_the_command_refuses_what_it_cannot_read(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--from", "dcgm-legacy", "--to", "dcgm-4.7"]
    (tmp_path / "x.yaml").write_text("kind: Service")
    assert translate([str(tmp_path / "x.yaml"), *names]) == 2
    assert translate([str(tmp_path / "absent"), *names]) == 2
    (tmp_path / "x.json").write_text("{")
    assert translate([str(tmp_path / "x.json"), *names]) == 2
    assert "neither a Grafana dashboard" in capsys.readouterr().err


def test_the_command_refuses_what_is_without_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["--from", "dcgm-legacy", "--to", "dcgm-4.7"]
    with pytest.raises(SystemExit) as raised:
        translate(["--query", "up", str(tmp_path / "x.json"), *names])
    assert raised.value.code == 2
    assert "FILE and --query cannot be used together" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", StringIO(""))
    assert translate(["-", *names]) == 2
    assert capsys.readouterr().err == "conch translate: stdin has no queries: there is nothing to translate\n"
    assert translate(["absent.yaml", *names]) == 2
    assert capsys.readouterr().err == "conch translate: cannot read 'absent.yaml': No such file or directory\n"
    path = tmp_path / "absent" / "x"
    assert translate(["--query", "up", "--output", str(path), *names]) == 1
    assert capsys.readouterr().err == f"conch translate: cannot write {path}: No such file or directory\n"


@pytest.mark.parametrize("target", ["conch", "triton"])
def test_a_query_of_vllm_without_a_model_selects_one_or_says_that_it_does_not(target: Dialect) -> None:
    """vLLM's metrics are of language models only; those of Conch and Triton are of all models of the server."""
    query = "sum(rate(vllm:e2e_request_latency_seconds_count[5m]))"
    mixing = Translator("vllm-v1", target)
    mixing.query(query)
    assert "selects all models of the server" in mixing.outcomes[0].reason
    selecting = Translator("vllm-v1", target, "chat")
    assert '{model="chat"}' in selecting.query(query)
    assert selecting.outcomes[0].reason == ""
    assert '{model="a"}' in selecting.query('vllm:e2e_request_latency_seconds_count{model_name="a"}')
    assert selecting.outcomes[1].reason == ""


def test_a_dashboard_of_vllm_for_conch_says_which_panels_mix_models() -> None:
    panel = {"title": "Queue", "targets": [{"refId": "A", "expr": "rate(vllm:request_queue_time_seconds_sum[5m])"}]}
    translator = Translator("vllm-v1", "conch")
    translator.translate({"panels": [panel]})
    assert [outcome.place for outcome in translator.outcomes if "selects all models" in outcome.reason] == ["Queue/A"]
