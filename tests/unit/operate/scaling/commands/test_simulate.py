"""`conch autoscale simulate`: words of the command line, files of policies, results."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from conch.measure.bench.report.certificate import to_json
from conch.operate.scaling.commands.command import autoscale
from conch.operate.scaling.hpa.spec import read_hpa
from tests.measure.bench.report.samples import certificate
from tests.unit.operate.scaling.test_keda import SCALED_OBJECT
from tests.unit.operate.scaling.test_read_hpa import RATIO_HPA

LOAD = ("simulate", "--traffic", "burst:50:500:10m/30m", "--duration", "1h", "--noise", "0")
SERVICE = ("--service-time", "20ms", "--instances", "4")


def simulate(*arguments: str) -> int:
    """Run the command over an hour of bursts."""
    return autoscale([*LOAD, *SERVICE, *arguments])


def test_policies_are_compared_and_the_best_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        simulate("--policy", "utilization+ratio", "--policy", "fixed:4", "--policy", "predict", "--slo", "latency:1s")
        == 0
    )
    text = capsys.readouterr().out
    assert "bursts 50:500:10m/30m: 720.0 k requests in 1 h, 50 to 500/s." in text
    assert "A replica serves 200.0/s and is ready after 40 s." in text
    assert "fixed:4 meets the objective with the fewest replica-hours." in text
    assert "kubectl" not in text  # a fixed number has no object


def test_the_winner_is_an_object_that_can_be_applied(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    both = "utilization:600m+ratio"
    assert simulate("--policy", both, "--name", "detector", "--namespace", "vision", "--max-replicas", "6") == 0
    document = yaml.safe_load(capsys.readouterr().out.partition("takes this\n")[2])
    spec = read_hpa(document)
    assert (document["metadata"]["name"], document["metadata"]["namespace"]) == ("detector", "vision")
    assert (spec.target, spec.max_replicas) == (("Deployment", "detector"), 6)
    assert [(metric.name, metric.target) for metric in spec.metrics] == [
        ("conch:instance_utilization:ratio_rate1m", 0.6),
        ("triton:queue_compute:ratio", 1.0),
    ]
    target = tmp_path / "keda.yaml"
    assert simulate("--policy", "predict", "--cold-start", "2m", "-o", str(target)) == 0
    scaled = yaml.safe_load(target.read_text())
    assert scaled["kind"] == "ScaledObject"
    assert scaled["spec"]["cooldownPeriod"] == 1200  # ten cold starts
    assert "predict_linear" in scaled["spec"]["triggers"][1]["metadata"]["query"]


def test_json_and_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, plots = tmp_path / "results.json", tmp_path / "plots.html"
    words = ("--policy", "counter", "--policy", "rps", "--json", str(results), "--html", str(plots))
    assert simulate(*words, "--fault", "prometheus-down:20m:10m", "--fault", "kill:40m:1") == 0
    capsys.readouterr()
    read: dict[str, Any] = json.loads(results.read_text())
    assert [policy["name"] for policy in read["policies"]] == ["counter", "rps"]
    assert len(read["rates"]) == len(read["policies"][0]["ready"]) == 60
    assert any("could not be read" in remark for remark in read["policies"][1]["remarks"])
    page = plots.read_text()
    assert page.count("<figcaption>Replicas</figcaption>") == 2
    assert page.count('role="img"') >= 3
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_policies_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hpa, keda = tmp_path / "hpa.yaml", tmp_path / "keda.yaml"
    hpa.write_text("kind: Service\n---" + RATIO_HPA)
    keda.write_text(SCALED_OBJECT)
    assert simulate("--hpa", str(hpa), "--scaled-object", str(keda)) == 0
    text = capsys.readouterr().out
    assert "hpa/detector" in text
    assert "keda/detector" in text
    assert "kubectl apply" in text


def test_the_seed_decides_the_noise(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        autoscale([*LOAD[:-2], "--seed", seed, *SERVICE, "--policy", "rps"])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


COUNTER_HPA = """
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: triton-hpa}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: triton}
  minReplicas: 2
  maxReplicas: 10
  metrics:
    - type: Pods
      pods:
        metric: {name: nv_inference_request_success}
        target: {type: AverageValue, averageValue: 1000}
"""


def test_published_autoscalers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An HPA on a counter, as published, only scales up; one on the ratio goes from 1 to 4 and back to 1."""
    counter, ratio, results = tmp_path / "counter.yaml", tmp_path / "ratio.yaml", tmp_path / "results.json"
    counter.write_text(COUNTER_HPA)
    ratio.write_text(RATIO_HPA.replace("triton_queue_compute_ratio", "triton:queue_compute:ratio"))
    words = ("--hpa", str(counter), "--hpa", str(ratio), "--initial-replicas", "1", "--json", str(results))
    assert simulate(*words) == 0
    assert "counter/triton-hpa: only scales up" in capsys.readouterr().out
    rising, following = json.loads(results.read_text())["policies"]
    assert [after for _, _, after in rising["events"]] == sorted(after for _, _, after in rising["events"])
    assert rising["wanted"][-1] == 10
    # Bursts are from minute 20 to 30, and from 50 to 60.
    assert (following["wanted"][19], max(following["wanted"][20:30]), following["wanted"][48]) == (1, 4, 1)


def test_service_times_of_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "bench.json"
    report.write_bytes(to_json(certificate(1, 4, 16)))
    assert autoscale([*LOAD, "--service-time", str(report), "--policy", "fixed"]) == 0
    assert "A replica serves" in capsys.readouterr().out
    report.write_text("{}")
    assert autoscale([*LOAD, "--service-time", str(report), "--policy", "fixed"]) == 2
    assert "bench.json" in capsys.readouterr().err


def test_batches_raise_the_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("--batch", "8:0.25", "--policy", "fixed") == 0
    assert "A replica serves 581.8/s" in capsys.readouterr().out


def test_language_models(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "--traffic", "steady:20", "--duration", "30m", "--llm", "500/200", "--slo", "ttft:1s")
    assert autoscale([*words, "--policy", "kv+waiting", "--policy", "ttft", "--policy", "fixed"]) == 0
    text = capsys.readouterr().out
    assert "99 % with the first token within 1.00 s" in text.replace("\n", " ")
    assert "ttft" in text


def test_recorded_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts, times = tmp_path / "counts.csv", tmp_path / "times.txt"
    counts.write_text("time,requests\n" + "\n".join(f"{60 * minute},{600 * (minute % 3)}" for minute in range(30)))
    times.write_text("\n".join(str(number / 10) for number in range(6000)))
    assert autoscale(["simulate", "--traffic", f"counts:1m:{counts}", *SERVICE, "--policy", "rps"]) == 0
    assert "counts.csv: 18.0 k requests in 0.5 h, 0 to 20/s." in capsys.readouterr().out
    assert autoscale(["simulate", "--traffic", f"s:{times}", "--scale", "10", *SERVICE, "--policy", "rps"]) == 0
    assert "times.txt: 60.0 k requests in 0.166667 h, 100 to 100/s." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--policy", "best"), "'best' is not a policy here; expected one of ratio, utilization"),
        (("--policy", "utilization+counter"), "'counter' is not a policy here; expected one of ratio"),
        (("--policy", "ratio:fast"), "'fast' is not a target"),
        (("--policy", "fixed:many"), "'many' is not a number of replicas"),
        (("--policy", "rps", "--policy", "rps"), "two policies have the same name"),
        (("--fault", "fire:3h"), "'fire' is not a fault; expected one of prometheus-down, metric-missing, kill"),
        (("--fault", "prometheus-down:3h"), "needs a time; expected prometheus-down:3h:10m"),
        (("--fault", "kill:3h"), "kill begins at 10,800 s, after the load, which lasts 3,600 s"),
        (("--service-time", "0ms"), "--service-time: expected a time above 0, such as 20ms, got 0ms"),
        (("--llm", "500/200"), "--service-time and --llm exclude each other"),
        (("--duration", "0s"), "--duration: expected 1 s to 31 days, got 0 s"),
        (("--duration", "1000h"), "--duration: expected 1 s to 31 days, got 3,600,000 s"),
        (("--fault", "kill:3h:all"), "'all' is not a number of replicas"),
        (("--batch", "0"), "--batch: '0' is not valid"),
        (("--batch", "many"), "--batch: 'many' is not valid"),
        (("--slo", "ttft:1s"), "--slo ttft needs --llm"),
        (("--traffic", "diurnal:9"), "expected diurnal:LOW:HIGH or diurnal:LOW:HIGH:HOUR"),
        (("--traffic", "daily:9"), "expected steady, diurnal, burst, ramp, counts, or a file of a recorded load"),
        (("--traffic", "steady:-1"), "'-1' is not a rate"),
        (("--hpa", "missing.yaml"), "cannot read 'missing.yaml'"),
    ],
)
def test_invalid_words_are_named(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("conch autoscale simulate: ")
    assert message in error


def test_a_long_usage_does_not_hide_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        autoscale(["simulate", "--traffic", "steady:20", "--llm", "500"])
    assert exit_.value.code == 2
    command = "conch autoscale simulate"
    message = f"{command}: error: argument --llm: '500' is not PROMPT/OUTPUT in tokens, such as 500/200"
    assert capsys.readouterr().err == f"{message}\n{command} --help lists all flags.\n"


def test_invalid_objects_are_named_with_their_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hpa.yaml"
    path.write_text(RATIO_HPA.replace("maxReplicas: 4", "maxReplicas: 0"))
    assert simulate("--hpa", str(path)) == 2
    expected = f"{path}: spec.maxReplicas: expected an integer of at least 1, got 0"
    assert expected in capsys.readouterr().err
    path.write_text(RATIO_HPA.replace("triton_queue_compute_ratio", "latency_p99"))
    assert simulate("--hpa", str(path)) == 2
    assert "the simulation has no metric 'latency_p99'; it has" in capsys.readouterr().err
    path.write_text("kind: [")
    assert simulate("--hpa", str(path)) == 2
    assert f"{path}:1:" in capsys.readouterr().err


def test_constant_times_have_a_variation_of_zero(capsys: pytest.CaptureFixture[str]) -> None:
    """Of requests that never wait, those of constant times are late never, and of lognormal times by their tail."""
    arguments = ["simulate", "--traffic", "steady:1", "--duration", "10m", "--policy", "fixed:9", *SERVICE]
    late = []
    for variation in ("0", "0.5"):
        assert autoscale([*arguments, "--slo", "latency:50ms", "--variation", variation]) == 0
        [words] = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("fixed:9  ")]
        late.append(words[1])
    assert late == ["0.00", "1.47"]  # 1.48 % of a lognormal distribution are above 2.5 times its mean
    with pytest.raises(SystemExit):
        autoscale([*arguments, "--variation", "-1"])
    assert "'-1' is not a number of at least 0" in capsys.readouterr().err
