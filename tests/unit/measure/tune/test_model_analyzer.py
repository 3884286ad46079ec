import pytest

from conch.measure.tune.model_analyzer import AnalyzerProfile, ProfileError, read_profile
from conch.measure.tune.objective import Constraint, Objective

# From Model Analyzer's documentation, docs/config.md and docs/config_search.md.
DOCUMENTED = """\
model_repository: /path/to/model/repository/
triton_launch_mode: remote
triton_http_endpoint: localhost:8000
client_protocol: grpc
run_config_search_max_concurrency: 8
profile_models:
  vgg_19_graphdef:
    objectives:
      perf_latency_p99: 10
      perf_throughput: 5
    constraints:
      gpu_used_memory:
        max: 200
      perf_latency_p99:
        max: 50
    parameters:
      batch_sizes: 4
      concurrency:
        start: 2
        stop: 8
        step: 2
    model_config_parameters:
      instance_group:
        - kind: [KIND_GPU, KIND_CPU]
          count: [1, 2]
      dynamic_batching:
        max_queue_delay_microseconds: [100, 200]
        preferred_batch_size: [[4, 8], [16]]
      optimization:
        graph:
          level: [0, 1]
    perf_analyzer_flags:
      percentile: 95
      shape: INPUT:3,224,224
      measurement-interval: 2000
"""


def _read(text: str) -> AnalyzerProfile:
    return read_profile(text, "profile.yml")


def test_a_documented_profile() -> None:
    profile = _read(DOCUMENTED)
    (run,) = profile.runs
    assert profile.url == "http://localhost:8000"
    assert run.model == "vgg_19_graphdef"
    assert run.goal.objectives == (Objective("p99", 10), Objective("throughput", 5))
    assert run.goal.constraints == (Constraint("gpu_memory", maximum=200e6), Constraint("p99", maximum=0.05))
    assert run.knobs[""] == {
        "instance_kind": ("KIND_GPU", "KIND_CPU"),
        "instances": (1, 2),
        "queue_delay_us": (100, 200),
        "preferred_batch_sizes": ((4, 8), (16,)),
        "field:optimization.graph.level": (0, 1),
    }
    assert run.trial.protocol == "grpc"
    assert run.trial.batch_size == 4
    assert run.trial.concurrency == (2, 4, 6, 8)
    assert run.trial.shapes == {"INPUT": (3, 224, 224)}
    assert run.trial.window_s == 2.0
    assert [notice.partition(": ")[0] for notice in profile.notices] == [
        "profile.yml:1",
        "profile.yml:2",
        "profile.yml:33",
    ]


def test_several_models_and_limits_of_the_automatic_search() -> None:
    profile = _read(
        "profile_models: [add_sub, digits]\n"
        "run_config_search_mode: brute\n"
        "run_config_search_max_instance_count: 3\n"
        "run_config_search_max_model_batch_size: 16\n"
        "run_config_search_min_model_batch_size: 4\n"
        "latency_budget: 20\n"
        "concurrency: 1,4\n"
    )
    assert [run.model for run in profile.runs] == ["add_sub", "digits"]
    for run in profile.runs:
        assert run.search.strategy == "grid"
        assert run.knobs[""]["instances"] == (1, 2, 3)
        assert run.knobs[""]["max_batch_size"] == (4, 8, 16)
        assert run.goal.constraints == (Constraint("p99", maximum=0.02),)
        assert run.trial.concurrency == (1, 4)


def test_composing_models_have_their_own_sweeps() -> None:
    profile = _read(
        "profile_models: pipeline\n"
        "bls_composing_models:\n"
        "  - stage_a\n"
        "  - stage_b:\n"
        "      model_config_parameters:\n"
        "        instance_group: [{count: [1, 2]}]\n"
    )
    (run,) = profile.runs
    assert run.composing == ("stage_a", "stage_b")
    assert run.knobs["stage_b"] == {"instances": (1, 2)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profile_models: [a]\nconcurency: 4\n", "profile.yml:2: unknown key 'concurency'; did you mean 'concurrency'"),
        ("profile_models:\n  a:\n    objective: [x]\n", "profile.yml:3: unknown key 'objective'"),
        ("profile_models: [a]\nobjectives: [perf_latency_p98]\n", "unknown metric 'perf_latency_p98'; did you mean"),
        ("profile_models: [a]\nobjectives: {perf_throughput: 0}\n", "profile.yml:2: the weight of"),
        ("profile_models: [a]\nbatch_sizes: [1, 2]\n", "profile.yml:2: one batch size is supported"),
        ("profile_models: [a]\nperf_analyzer_flags: {request-intervals: x}\n", "flag 'request-intervals' is not supp"),
        ("profile_models: [a]\nrun_config_search_mode: fast\n", "expected brute, quick, optuna; got 'fast'"),
        ("profile_models: [a]\nclient_protocol: smoke\n", "profile.yml:2: expected http or grpc"),
        ("concurrency: 1\n", "names no model"),
        ("- a\n", "expected one mapping"),
        ("a: [\n", "profile.yml:"),
        (
            "profile_models: [a, b]\nrun_config_profile_models_concurrently_enable: true\n",
            "profile.yml:2: models that are loaded together",
        ),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        _read(text)
    assert message in str(caught.value)
