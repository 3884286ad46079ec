"""`conch check` and a real server agree about the same models."""

import os
import random
from collections.abc import Sequence
from pathlib import Path

import tritonclient.http as client
from onnx import helper

from conch.check.check_paths import check_paths
from conch.check.finding import Finding, Severity
from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.backends.onnxruntime.onnx_models import FP32, write_model
from tests.server.check_cases import CASES, python, write_cases
from tests.support.models import tensor, write_config, write_ensemble
from tests.support.server_process import ConchProcess

# Parts of configurations, right and wrong ones; a model has a few of them.
PARTS = (
    "max_batch_size: 4",
    "max_batch_size: -1",
    "dynamic_batching { }",
    "dynamic_batching { preferred_batch_size: [ 2, 4 ] }",
    "dynamic_batching { priority_levels: 2 }",
    "dynamic_batching [ { } ]",
    "sequence_batching { direct { } }",
    "sequence_batching { direct { minimum_slot_utilization: 3 } }",
    "instance_group { count: 2 kind: KIND_CPU }",
    "instance_group { kind: KIND_CPU gpus: [ 0 ] }",
    "instance_group { kind: KIND_MODEL profile: [ '1' ] }",
    "version_policy { all { } }",
    "version_policy { specific { versions: [ 1, 3 ] } }",
    "version_policy { specific { versions: [ 9 ] } }",
    "version_policy { latest { num_versions: 0 } }",
    "response_cache { enable: true }",
    "model_transaction_policy { decoupled: false }",
    "model_repository_agents { agents { name: 'checksum' } }",
    "optimization { priority: PRIORITY_MAX }",
    "optimization { priority: MAX }",
    "default_model_filename: '../m'",
    "parameters { key: 'a' value { string_value: 'b' } }",
    "parameters { key: 'a' value: 'b' }",
    "model_warmup { name: 'w' batch_size: 0 }",
    "metric_tags { key: 'a' value: 'b' }",
    "model_metrics { metric_control { metric_identifier { family: 'conch_batch_size' } histogram_options { } } }",
    "model_metrics { metric_control { metric_identifier { family: 'x' } histogram_options { buckets: 1 } } }",
    "max_batchsize: 2",
    "name: 'another'",
    "runtime: 'x'",
)
LOADED = r"\| *Model *\|"  # the table of what was loaded
INPUTS = (tensor("IN", "FP32", 4), tensor("IN", "FP32", 0), tensor("IN", "FP32", -1), tensor("", "FP32", 1))
OUTPUTS = (tensor("OUT", "FP32", 4), tensor("OUT", "FP32", 4, extra="label_filename: 'none.txt'"))


def write_repository(root: Path, chance: random.Random) -> dict[str, str]:
    """Write models of all kinds; return the model that each ensemble is made of."""
    made_of: dict[str, str] = {}
    for number in range(120):
        parts = chance.sample(PARTS, chance.choice((0, 1, 1, 2)))
        given = chance.choice((INPUTS[0], INPUTS[0], *INPUTS))
        taken = chance.choice((OUTPUTS[0], OUTPUTS[0], *OUTPUTS))
        backend = chance.choice(("identity",) * 6 + ("nothing", "onnxruntime"))
        write_config(root, f"m{number}", f'backend: "{backend}" {" ".join(parts)} input {given} output {taken}')
    for number in range(24):
        batch = f"max_batch_size: {chance.choice((0, 4))}"
        declared = chance.choice(("", f"input {tensor('IN', chance.choice(('FP32', 'INT64')), 4)}"))
        declared += chance.choice(
            ("", f" output {tensor(chance.choice(('OUT', 'OUTPUT')), 'FP32', chance.choice((4, 5)))}")
        )
        dims = chance.choice((["n", 4], [1, 4], [4]))
        nodes = [helper.make_node("Identity", ["IN"], ["OUT"])]
        model = write_model(root / f"o{number}", nodes, {"IN": (FP32, dims)}, {"OUT": (FP32, dims)})
        (model / "config.pbtxt").write_text(f"{batch} {declared}")
        damage = chance.choice((None, None, None, 0, 20))
        if damage is not None:
            (model / "1" / "model.onnx").write_bytes((model / "1" / "model.onnx").read_bytes()[:damage])
    for number in range(24):
        inner = chance.choice((f"m{chance.randrange(120)}", "missing", "o1"))
        made_of[f"e{number}"] = inner
        size = chance.choice((4, 5))
        step = (inner, {chance.choice(("IN", "IN", "X")): "A"}, {"OUT": "B"})
        write_ensemble(
            root, f"e{number}", f"input {tensor('A', 'FP32', size)}", f"output {tensor('B', 'FP32', 4)}", step
        )
    return made_of


def failing(root: Path) -> set[str]:
    """Models of which the check says that they do not load."""
    return {
        finding.place.path.relative_to(root).parts[0]
        for finding in check_paths([root]).findings
        if finding.rule.severity is Severity.ERROR
    }


def not_loaded(server: ConchProcess) -> dict[str, Sequence[str]]:
    index = client.InferenceServerClient(server.http).get_model_repository_index()
    bad: dict[str, list[str]] = {}
    for entry in index:
        if entry.get("state") != "READY":
            bad.setdefault(entry["name"], []).append(entry.get("reason", ""))
    return bad


def test_models_with_errors_and_only_those_fail_to_load(tmp_path: Path) -> None:
    root = tmp_path / "models"
    made_of = write_repository(root, random.Random(5))
    expected = failing(root)
    with ConchProcess(root, "--exit-on-error=false", log=tmp_path / "log", wait="live") as server:
        server.until_logged(LOADED)
        refused = not_loaded(server)
    # An ensemble fails with its model; the check says so of the model alone.
    expected |= {ensemble for ensemble, model in made_of.items() if model in expected}
    assert {name: reasons for name, reasons in refused.items() if name not in expected} == {}
    assert expected - refused.keys() == set()
    assert 30 < len(expected) < 150


def write_language_models(root: Path) -> None:
    """Write models that generate, with files that are right and files that are not."""
    documents: dict[str, tuple[str, str | None]] = {
        "right": ("scripted", "{}"),
        "bare": ("scripted", None),
        "misspelt": ("scripted", '{"answer": "yes"}'),
        "no-json": ("scripted", "{"),
        "gguf": ("openvino_genai", '{"num_kv_blocks": 16}'),
        "mistyped": ("openvino_genai", '{"num_kv_blocks": "16"}'),
        "too-long": ("openvino_genai", '{"num_kv_blocks": 16, "max_model_len": 100000}'),
        "elsewhere": ("openvino_genai", '{"model": "elsewhere.gguf"}'),
        "adapters": ("openvino_genai", '{"num_kv_blocks": 16}'),
        "damaged": ("openvino_genai", '{"num_kv_blocks": 16}'),
        "none": ("openvino_genai", "{}"),
    }
    for name, (backend, document) in documents.items():
        write_config(root, name, f'backend: "{backend}"')
        if document is not None:
            (root / name / "1" / "model.json").write_text(document)
        if backend == "openvino_genai" and name != "none":
            write_gguf(root / name / "1" / "model.gguf")
    (root / "adapters" / "1" / "multi_lora.json").write_text('{"a": "nowhere"}')
    (root / "damaged" / "1" / "model.gguf").write_bytes(b"PK")
    write_config(root, "tensors", f'backend: "scripted" input {tensor("input_ids", "INT32", -1)}')
    engines = 'parameters { key: "gpt_model_path" value { string_value: "/engines" } }'
    write_config(root, "engines", f'backend: "tensorrtllm" {engines}')


def test_language_models_without_errors_load(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_language_models(root)
    expected = failing(root)
    with ConchProcess(root, "--exit-on-error=false", log=tmp_path / "log", wait="live") as server:
        server.until_logged(LOADED)
        refused = not_loaded(server)
    assert refused.keys() == expected
    assert not expected & {"right", "bare", "gguf"}
    assert len(expected) == 10


# A package that the check does not find may be in the environment of the serving machine.
NOT_HERE = {"python-import"}


def test_check_and_server_agree_on_users_folders(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_cases(root)
    expected = failing(root)
    notices = {
        (finding.place.path.relative_to(root).parts[0], finding.rule.id) for finding in check_paths([root]).findings
    }
    missing_here = {name for name, rule in notices if rule in NOT_HERE}
    assert missing_here == {"python-missing-import"}
    with ConchProcess(root, "--exit-on-error=false", log=tmp_path / "log", wait="live") as server:
        server.until_logged(LOADED)
        refused = not_loaded(server)
    assert {name: reasons for name, reasons in refused.items() if name not in expected | missing_here} == {}
    assert expected - refused.keys() == set()
    assert len(CASES) >= 100
    assert len(expected) > 50
    assert len(CASES.keys() - expected) > 25


def findings_of(root: Path, *rules: str) -> list[Finding]:
    return [finding for finding in check_paths([root]).findings if finding.rule.id in rules]


def test_an_unreadable_folder_does_not_end_the_check(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_cases(root, {"good": CASES["config-good"], "locked": CASES["config-good"], "wrong": CASES["config-negative"]})
    assert findings_of(root, "config-invalid")  # which imports what another user may not be able to
    (root / "locked").chmod(0)
    is_root = os.geteuid() == 0
    if is_root:  # whom no mode keeps out
        for folder in (tmp_path, *tmp_path.parents):
            if folder.name.startswith(("pytest-", "popen-")) or folder == tmp_path:
                folder.chmod(0o755)
        os.seteuid(65534)
    try:
        [unreadable] = findings_of(root, "file-unreadable")
        assert unreadable.place.path.is_relative_to(root / "locked")
        assert findings_of(root, "config-invalid")
    finally:
        if is_root:
            os.seteuid(0)
        (root / "locked").chmod(0o755)


def test_a_missing_import_is_reported_once(tmp_path: Path) -> None:
    code = "import nowhere.a\nimport nowhere.b\nfrom nowhere import c\n"
    write_cases(tmp_path / "models", {"model": python(code * 3)})
    [finding] = findings_of(tmp_path / "models", "python-import")
    assert finding.message == "module 'nowhere' is not installed in this environment (and 8 more places)"


def test_an_absolute_path_may_exist_where_the_model_is_served(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_config(root, "llama", 'backend: "vllm"')
    (root / "llama" / "1" / "model.json").write_text('{"model": "/data/llama"}')
    write_config(root, "near", 'backend: "vllm"')
    (root / "near" / "1" / "model.json").write_text('{"model": "./llama"}')
    assert failing(root) == {"near"}
    [notice] = findings_of(root, "path-elsewhere")
    assert "/data/llama does not exist on this machine" in notice.message
