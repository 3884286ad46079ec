"""What `conch advise` refuses, writes and prints."""

import json
from pathlib import Path

import pytest

from tests.measure.advise.make_models import make_models, write_gguf
from tests.measure.advise.test_cases import run

A10G = "4×A10G 24GiB, 32 cores, 128GiB"
LAPTOP = "8 cores, 16GiB, 50GB/s"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_models(folder)
    return folder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.onnx"], "there is no 'absent.onnx': expected the folder of a checkpoint"),
        (["broken.onnx"], "'broken.onnx' cannot be read: "),
        (["broken.gguf"], "'broken.gguf' cannot be read: it does not begin with GGUF"),
        (["text.txt"], "'text.txt' is not a known model"),
        (["llama-2-7b-chat", "--machine", "four A10G"], "'four A10G' is not valid in the description of a machine"),
        (["llama-2-7b-chat", "--machine", "2×B999, 8 cores, 64GiB"], "needs 1 to 1024 GPUs and the memory of one"),
        (["llama-2-7b-chat", "--machine", "2×B999, 8 cores, 64GiB"], "such as '2×B999 96GiB 1600GB/s 500TFLOPS'"),
        (["llama-2-7b-chat", "--machine", "2×T4"], "has no valid number of cores: expected parts with commas"),
        (["llama-2-7b-chat", "--machine", "m.json"], "unknown key 'colour'; keys: "),
        (["llama-2-7b-chat", "--machine", A10G, "--slo", "itl:2ms"], "itl:2.00ms is impossible, the lower bound is"),
        (["llama-2-7b-chat", "--machine", A10G, "--slo", "itl:2ms"], "Possible: --slo itl:9ms"),
        (["qwen2.5-7b-q4.gguf", "--machine", LAPTOP, "--slo", "itl:20ms"], "Possible: --slo itl:135ms"),
        (["qwen2.5-7b-q4.gguf", "--machine", "8 cores, 4GiB"], "does not fit: 4.2 GiB of weights"),
        (["llama-2-7b-chat", "--machine", "8 cores, 64GiB"], "no backend can serve 'llama-2-7b-chat' (checkpoint)"),
        (["llama-2-7b-chat", "--machine", A10G, "--concurrency", "500"], "which hold 33"),
        (
            ["llama-2-7b-chat", "--machine", A10G, "--prompt-tokens", "9000", "--output-tokens", "1"],
            "are above the 4096",
        ),
        (
            ["classifier.onnx", "--also", "classifier.onnx", "--machine", LAPTOP],
            "two models have the name 'classifier'",
        ),
    ],
)
def test_failures_say_what_is_wrong_and_what_is_right(arguments: list[str], message: str, models: Path) -> None:
    (models / "broken.onnx").write_bytes(b"\x3a\xff\xff\xff")
    (models / "broken.gguf").write_bytes(b"GGML" * 10)
    (models / "text.txt").write_text("no model")
    (models / "m.json").write_text('{"cores": 8, "memory": "16GiB", "colour": "red"}')
    status, printed = run(arguments, models)
    assert status == 1
    assert message in printed


def test_a_file_describes_the_machine(models: Path) -> None:
    document = {"gpus": 2, "gpu": "L4", "cores": 16, "memory": "64GiB", "processor": "AMD"}
    (models / "machine.json").write_text(json.dumps(document))
    status, printed = run(["llama-2-7b-chat", "--machine", "machine.json"], models)
    assert status == 0
    assert printed.startswith("Machine: 2 × L4 24 GiB, 16 cores, 64 GiB [stated]")


def test_this_machine_is_the_default(models: Path) -> None:
    status, printed = run(["classifier.onnx"], models)
    assert status == 0
    assert "[measured here]" in printed


def test_replicas_are_servers_with_other_gpus(models: Path) -> None:
    status, printed = run(["llama-2-7b-chat", "--machine", A10G, "--concurrency", "6", "--json"], models)
    document = json.loads(printed)
    assert status == 0
    assert document["models"][0]["replicas"] == 2
    assert [line.split()[0] for line in document["commands"]] == ["CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1"]


@pytest.mark.parametrize("source", ["classifier.onnx", "mixed", "pipeline", "chat"])
def test_conch_check_accepts_what_is_written(source: str, models: Path, tmp_path: Path) -> None:
    from conch.check.check_paths import check_paths
    from conch.check.finding import Severity

    source = "mixed/chat/1/model.gguf" if source == "chat" else source
    target = tmp_path / "written"
    status, printed = run([source, "--machine", "16 cores, 64GiB, AMD", "--write", str(target)], models)
    assert status == 0, printed
    report = check_paths([target])
    assert not [finding for finding in report.findings if finding.rule.severity is Severity.ERROR]
    again, printed = run([source, "--machine", "16 cores, 64GiB", "--write", str(target)], models)
    assert again == 1
    assert "is not empty" in printed


def test_writing_changes_no_source(models: Path, tmp_path: Path) -> None:
    source = models / "pipeline" / "preprocess" / "config.pbtxt"
    before = source.read_bytes()
    run(["pipeline", "--machine", "64 cores, 64GiB", "--write", str(tmp_path / "out")], models)
    assert source.read_bytes() == before
    assert b"count: 16" in (tmp_path / "out" / "preprocess" / "config.pbtxt").read_bytes()


def test_the_rules_can_be_read(models: Path) -> None:
    status, printed = run(["--rules"], models)
    assert status == 0
    assert "language-only: if form is checkpoint and has gpu and not (tensors ≥ 1): take vllm" in printed


def test_a_small_gguf_fits(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf", 1_000_000)
    status, printed = run(["small.gguf", "--machine", LAPTOP], tmp_path)
    assert status == 0
    assert "openvino_genai" in printed


@pytest.mark.slow
def test_measurements_decide_between_backends(models: Path) -> None:
    status, printed = run(["classifier.onnx", "--measure", "22s", "--slo", "latency:60s", "--json"], models)
    assert status == 0, printed
    figures = {figure["name"]: figure["source"] for figure in json.loads(printed)["models"][0]["figures"]}
    assert figures["latency P99"] == "measured here"
    status, printed = run(["classifier.onnx", "--measure", "22s", "--slo", "latency:1us"], models)
    assert status == 1
    assert "latency:1.00µs is impossible here: the P99 of" in printed


@pytest.mark.slow
def test_forms_of_a_model_are_measured(models: Path) -> None:
    write_classifier_ir(models)
    command = ["classifier.onnx", "--alternative", "classifier_ir.xml", "--measure", "33s", "--json"]
    status, printed = run(command, models)
    assert status == 0, printed
    backend = json.loads(printed)["models"][0]["backend"]
    others = {alternative["reason"].partition(" is ")[0] for alternative in backend["alternatives"]}
    known = {"openvino with classifier_ir.xml", "openvino with classifier.onnx", "onnxruntime with classifier.onnx"}
    assert others < {f"the P99 of {name}" for name in known}
    assert len(others) == 2
    assert backend["reason"].startswith("the P99 of ")


def write_classifier_ir(folder: Path) -> None:
    import openvino

    openvino.save_model(openvino.convert_model(folder / "classifier.onnx"), folder / "classifier_ir.xml")


def test_what_cannot_be_measured_is_refused(models: Path) -> None:
    status, printed = run(["mixed", "--measure", "3m"], models)
    assert status == 1
    assert "--measure compares forms of one model, without --also" in printed
    write_classifier_ir(models)
    _, printed = run(["classifier_ir.xml", "--measure", "3m"], models)
    assert "--measure has nothing to compare with 'classifier_ir.xml'" in printed
    _, printed = run(["classifier.onnx", "--alternative", "qwen2.5-7b-q4.gguf", "--measure", "3m"], models)
    assert "--measure compares forms of a tensor model on CPUs, which 'qwen2.5-7b-q4' is not" in printed
    _, printed = run(["classifier.onnx", "--alternative", "classifier_ir.xml"], models)
    assert "--alternative names what --measure compares: add it" in printed
    status, printed = run(["classifier.onnx", "--measure", "10"], models)
    assert status == 2
    assert "it needs a unit" in printed
    _, printed = run(["classifier.onnx", "--machine", LAPTOP, "--measure", "3m"], models)
    assert "omit --machine" in printed


def test_a_repository_with_tree_models_is_advised(models: Path) -> None:
    """A tree model and one whose files no rule reads keep their configuration; they do not stop the advice."""
    repository = models / "mixed"
    for name, backend, file in (("forest", "fil", "xgboost.json"), ("echo", "identity", "")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(f'backend: "{backend}"\n')
        if file:
            (repository / name / "1" / file).write_text('{"learner": {}}')
    (repository / "classifier" / "1").mkdir(parents=True)
    (repository / "classifier" / "1" / "model.onnx").write_bytes((models / "classifier.onnx").read_bytes())
    status, printed = run(["mixed", "--machine", LAPTOP], models)
    assert status == 0
    assert "forest (tree model): fil" in printed
    assert "echo (other): as configured" in printed
    assert "nothing is advised for 'echo' (identity), 'forest' (fil)" in printed


def test_torch_export_is_not_torchscript(models: Path) -> None:
    (models / "net.pt2").write_bytes(b"PK")
    status, printed = run(["net.pt2", "--machine", LAPTOP, "--write", "written"], models)
    assert status == 0
    assert "net (torch.export): pytorch" in printed
    assert (models / "written" / "net" / "1" / "model.pt2").is_file()


def test_longer_requests_than_the_typical_one_are_accepted(models: Path) -> None:
    demand = ("--prompt-tokens", "128", "--output-tokens", "128")
    _, printed = run(["qwen2.5-7b-q4.gguf", "--machine", LAPTOP, "--concurrency", "2", *demand], models)
    assert "longest sequence 4096 [from the file: the model's context; the machine is sized for 256 tokens]" in printed
    assert '"max_model_len": 4096' in printed
    _, printed = run(["qwen2.5-3b-instruct", "--machine", "1×T4 8.5GiB, 8 cores, 64GiB", *demand], models)
    assert "[rule of thumb: what the KV cache holds of the model's context of 32768; sized for 256 tokens]" in printed
