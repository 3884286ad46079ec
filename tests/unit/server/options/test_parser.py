"""Flags and environment variables to ServerOptions, and the error messages."""

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import pytest

from conch.base.command_line.flag_values import BackendSetting, ResourceLimit
from conch.base.command_line.flags import Standing
from conch.server.options.parser import OptionError, parse
from conch.server.options.server_options import FLAGS, OWN_FLAGS, ServerOptions
from conch.server.options.triton_only_flags import TRITON_ONLY_FLAGS


@pytest.fixture
def repository(tmp_path: Path) -> str:
    return f"--model-repository={tmp_path}"


def problems(argv: list[str], environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(OptionError) as raised:
        parse(argv, environ or {})
    return raised.value.problems


def test_the_defaults_are_those_of_triton(repository: str, tmp_path: Path) -> None:
    options = parse([repository], {})
    assert options == ServerOptions(model_repository=(str(tmp_path),))
    assert (options.http_port, options.grpc_port, options.metrics_port) == (8000, 8001, 8002)
    assert (options.http_address, options.grpc_address, options.metrics_address) == ("0.0.0.0", "0.0.0.0", "0.0.0.0")
    assert (options.exit_timeout_secs, options.exit_on_error, options.strict_readiness) == (30, True, True)
    assert (options.model_control_mode, options.repository_poll_secs) == ("none", 15)


def test_both_spellings_of_a_value_mean_the_same(repository: str) -> None:
    assert parse([repository, "--http-port=81", "--log-file", ""], {}) == parse(["--http-port", "81", repository], {})


def test_the_last_of_a_flag_given_twice_counts(repository: str) -> None:
    assert parse([repository, "--http-port=81", "--http-port=82"], {}).http_port == 82


def test_repeatable_flags_gather_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    first.mkdir()
    second.mkdir()
    options = parse([f"--model-store={second}", f"--model-repository={first}"], {})
    assert options.model_repository == (str(second), str(first))


@pytest.mark.parametrize("text", ["true", "True", "on", "yes", "1"])
def test_words_for_true(repository: str, text: str) -> None:
    assert parse([repository, f"--grpc-keepalive-permit-without-calls={text}"], {}).grpc_keepalive_permit_without_calls


@pytest.mark.parametrize("text", ["false", "FALSE", "off", "no", "0"])
def test_words_for_false(repository: str, text: str) -> None:
    assert not parse([repository, "--allow-metrics", text], {}).allow_metrics


@pytest.mark.parametrize(("text", "level"), [("0", 0), ("3", 3), ("true", 1), ("false", 0), ("-1", 0)])
def test_verbosity_is_a_number_or_a_boolean(repository: str, text: str, level: int) -> None:
    assert parse([repository, f"--log-verbose={text}"], {}).log_verbose == level


def test_a_bare_flag_takes_no_word_after_it(repository: str) -> None:
    assert parse(["--disable-auto-complete-config", repository], {}).disable_auto_complete_config
    assert problems([repository, "--disable-auto-complete-config", "true"]) == (
        "unexpected argument 'true'; flags begin with two dashes",
    )


def test_words_are_read_in_any_case_and_kept_as_triton_writes_them(repository: str) -> None:
    options = parse([repository, "--model-control-mode=EXPLICIT", "--log-format=iso8601"], {})
    assert (options.model_control_mode, options.log_format) == ("explicit", "ISO8601")


# ---- environment -----------------------------------------------------------------------------------------------------


def test_flags_have_precedence_over_variables(tmp_path: Path) -> None:
    environ = {"CONCH_MODEL_REPOSITORY": str(tmp_path), "CONCH_HTTP_PORT": "81", "CONCH_GRPC_PORT": "82"}
    options = parse(["--http-port=83"], environ)
    assert (options.model_repository, options.http_port, options.grpc_port) == ((str(tmp_path),), 83, 82)


def test_a_repeatable_flag_replaces_the_whole_list_of_the_environment(repository: str) -> None:
    explicit = [repository, "--model-control-mode=explicit"]
    environ = {"CONCH_LOAD_MODEL": "a,b"}
    assert parse(explicit, environ).load_model == ("a", "b")
    assert parse([*explicit, "--load-model=c"], environ).load_model == ("c",)


def test_settings_that_hold_commas_are_separated_by_semicolons(repository: str) -> None:
    environ = {"CONCH_BACKEND_CONFIG": "python,shm-default-byte-size=1;onnxruntime,intra_op_thread_count=2"}
    assert parse([repository], environ).backend_config == (
        BackendSetting("python", "shm-default-byte-size", "1"),
        BackendSetting("onnxruntime", "intra_op_thread_count", "2"),
    )


def test_a_wrong_variable_is_named_as_such(repository: str) -> None:
    environ = {"CONCH_HTTP_PORT": "tcp://10.0.0.1:8000"}
    assert problems([repository], environ) == (
        "CONCH_HTTP_PORT: expected a whole number (port), 0 to 65535, got 'tcp://10.0.0.1:8000'",
    )


def test_unknown_variables_are_reported_with_suggestions(repository: str) -> None:
    service = {"CONCH_SERVICE_HOST": "10.0.0.1", "CONCH_PORT": "tcp://10.0.0.1:8000", "CONCH_PORT_8000_TCP": "x"}
    unknown = {"CONCH_HTTP_PROT": "81", "CONCH_COLOUR": "red", "conch_id": "x"}
    options = parse([repository], {**unknown, "CONCH_COMPILE": "no", **service})
    assert options.http_port == 8000
    assert options.notices == (
        "unknown environment variable CONCH_COLOUR; ignored",
        "unknown environment variable CONCH_HTTP_PROT; did you mean CONCH_HTTP_PORT?",
        "unknown environment variable conch_id; did you mean CONCH_ID?",
    )


# ---- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("--http-prt=1", "--http-port"),
        ("--http_port=1", "--http-port"),
        ("--model-repo", "--model-repository"),
        ("--load-models=x", "--load-model"),
    ],
)
def test_an_unknown_flag_suggests_the_nearest(repository: str, argument: str, meant: str) -> None:
    name = argument.partition("=")[0]
    assert problems([repository, argument]) == (f"unknown flag '{name}'; did you mean '{meant}'?",)


def test_an_unknown_flag_without_a_similar_one_refers_to_the_help(repository: str) -> None:
    assert problems([repository, "--zzz", "7"]) == ("unknown flag '--zzz'; --help lists all flags",)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--http-port=eighty", "--http-port: expected a whole number (port), 0 to 65535, got 'eighty'"),
        ("--http-port=65536", "--http-port: expected a whole number (port), 0 to 65535, got '65536'"),
        ("--exit-timeout-secs=-1", "--exit-timeout-secs: expected a whole number (s), 0 or more, got '-1'"),
        ("--repository-poll-secs=0", "--repository-poll-secs: expected a whole number (s), 1 or more, got '0'"),
        ("--exit-on-error=maybe", "--exit-on-error: expected true or false (also on/off, yes/no, 1/0), got 'maybe'"),
        ("--model-control-mode=all", "--model-control-mode: expected one of none, poll, explicit, got 'all'"),
        ("--backend-config=python", "--backend-config: expected the form <backend>,<key>=<value>, got 'python'"),
        ("--backend-config=,a=b", "--backend-config: expected the form <backend>,<key>=<value>, got ',a=b'"),
        (
            "--http-header-forward-pattern=(",
            "--http-header-forward-pattern: expected a regular expression (RE2), got '('",
        ),
        ("--http-port", "--http-port needs a value: a whole number (port), 0 to 65535"),
        ("-p", "unexpected argument '-p'; flags begin with two dashes"),
        ("--", "unexpected argument '--'; flags begin with two dashes"),
    ],
)
def test_an_invalid_value_is_reported_with_the_valid_ones(repository: str, argument: str, problem: str) -> None:
    assert problems([repository, argument]) == (problem,)


def test_a_flag_does_not_swallow_the_next_one(repository: str) -> None:
    assert problems(["--http-port", repository]) == ("--http-port needs a value: a whole number (port), 0 to 65535",)


def test_all_problems_are_reported_together() -> None:
    arguments = ["--http-port=x", "--grcp-port=1", "--metrics-port=8003", "--openai-port=8003"]
    assert problems(arguments, {"CONCH_LOG_INFO": "si"}) == (
        "--http-port: expected a whole number (port), 0 to 65535, got 'x'",
        "unknown flag '--grcp-port'; did you mean '--grpc-port'?",
        "CONCH_LOG_INFO: expected true or false (also on/off, yes/no, 1/0), got 'si'",
        "--model-repository is missing: name the directory that holds the models",
        "--metrics-port and --openai-port are both 8003 at 0.0.0.0; each service needs a separate port",
    )


@pytest.mark.parametrize(
    ("arguments", "environ", "only"),
    [
        (["--model-repo=/m"], {}, "unknown flag '--model-repo'; did you mean '--model-repository'?"),
        (
            ["{r}", "--model-control-mode=expliit", "--load-model=m"],
            {},
            "--model-control-mode: expected one of none, poll, explicit, got 'expliit'",
        ),
        (["{r}", "--grcp-port=9001", "--metrics-port=8001"], {}, "unknown flag '--grcp-port'"),
        (
            ["{r}", "--metrics-port=8001"],
            {"CONCH_GRPC_PORT": "x"},
            "CONCH_GRPC_PORT: expected a whole number (port), 0 to 65535, got 'x'",
        ),
        (["--frobnicate", "--http-port=8005"], {}, "unknown flag '--frobnicate'; --help lists all flags"),
        (["model.gguf"], {}, "unexpected argument 'model.gguf'; 'conch run model.gguf' serves a file, 'conch repo add"),
        (["s3://b/models"], {}, "unexpected argument 's3://b/models'; did you mean '--model-repository=s3://b/models'"),
        (["{r}", "--grpc-use-ssl=true", f"--grpc-server-key={__file__}", "--grpc-server-crt=x"], {}, "unknown flag"),
    ],
)
def test_one_mistake_is_one_problem(repository: str, arguments: list[str], environ: dict[str, str], only: str) -> None:
    (problem,) = problems([word.replace("{r}", repository) for word in arguments], environ)
    assert problem.startswith(only)


def test_a_misspelt_variable_is_reported_with_its_consequence() -> None:
    assert problems([], {"CONCH_MODEL_REPO": "/m"}) == (
        "--model-repository is missing: name the directory that holds the models",
        "unknown environment variable CONCH_MODEL_REPO; did you mean CONCH_MODEL_REPOSITORY?",
    )


def test_a_repository_is_a_directory_or_of_a_known_kind(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.touch()
    places = (f"{tmp_path}/none", str(file), "ftp://host/models")
    assert problems([f"--model-repository={place}" for place in places]) == (
        (
            f"--model-repository: directory '{tmp_path}/none' does not exist; "
            "'conch repo add' makes a repository from a model file"
        ),
        (
            f"--model-repository: '{file}' is a file: 'conch run {file}' serves it, 'conch repo add {file}' "
            "adds it to ./models"
        ),
        (
            "--model-repository: 'ftp://' is not supported; expected a directory or one of s3://, gs://, as://, "
            "oci://, http://, https://"
        ),
    )


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_models_to_load_are_named_in_explicit_mode_only(repository: str, mode: str) -> None:
    assert problems([repository, f"--model-control-mode={mode}", "--load-model=a"]) == (
        f"Use of '--load-model' requires setting '--model-control-mode=explicit' as well; it is {mode}",
    )


def test_the_wildcard_excludes_other_models(repository: str) -> None:
    explicit = [repository, "--model-control-mode=explicit", "--load-model=*"]
    assert parse(explicit, {}).load_model == ("*",)
    assert problems([*explicit, "--load-model=a"]) == (
        "Wildcard model name '*' must be the ONLY startup model if specified at all: it loads every one",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--grpc-port=0", "--http-port=0"],
        ["--grpc-port=8000", "--allow-http=false"],
        ["--grpc-port=8000", "--grpc-address=127.0.0.1", "--http-address=127.0.0.2"],
    ],
)
def test_ports_that_do_not_collide(repository: str, arguments: list[str]) -> None:
    parse([repository, *arguments], {})


def test_ports_collide_across_the_wildcard_address(repository: str) -> None:
    assert len(problems([repository, "--grpc-port=8000", "--grpc-address=127.0.0.1"])) == 1


def test_the_metrics_address_defaults_to_that_of_http(repository: str) -> None:
    assert parse([repository, "--http-address=127.0.0.1"], {}).metrics_address == "127.0.0.1"
    options = parse([repository, "--http-address=127.0.0.1", "--metrics-address=127.0.0.2"], {})
    assert options.metrics_address == "127.0.0.2"


def test_tls_needs_its_files(repository: str, tmp_path: Path) -> None:
    assert problems([repository, "--grpc-use-ssl=true", f"--grpc-server-cert={tmp_path}/no.pem"]) == (
        f"--grpc-server-cert: the file '{tmp_path}/no.pem' does not exist",
        "--grpc-use-ssl needs --grpc-server-key",
    )
    assert "--grpc-use-ssl-mutual needs --grpc-root-cert" in problems([repository, "--grpc-use-ssl-mutual=true"])


def test_credentials_of_pages_need_their_names(repository: str) -> None:
    allowed = ["--allow-credentials=true", '--allowed-origins=["https://a", "https://b"]']
    assert parse([repository, *allowed], {}).allow_credentials
    (problem,) = problems([repository, "--allow-credentials=true", "--allowed-origins=https://a,*"])
    assert problem.startswith("--allow-credentials needs --allowed-origins by name")
    (problem,) = problems([repository, "--allow-credentials=true"])
    assert problem == "--allow-credentials is for --allowed-origins, which is missing"
    for wrong in ("https://a,,b", '["a", 1]', "[", '[""]'):
        assert "words between commas" in problems([repository, f"--allowed-origins={wrong}"])[0]


def test_mutual_tls_is_tls(repository: str, tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.touch()
    files = [f"--grpc-{name}={pem}" for name in ("server-cert", "server-key", "root-cert")]
    assert parse([repository, "--grpc-use-ssl-mutual=true", *files], {}).grpc_use_ssl


def test_a_log_file_needs_a_directory(repository: str, tmp_path: Path) -> None:
    assert problems([repository, f"--log-file={tmp_path}/no/log"]) == (
        f"--log-file: directory '{tmp_path}/no' does not exist",
    )


# ---- settings --------------------------------------------------------------------------------------------------------


def test_settings_of_a_backend_have_precedence(repository: str) -> None:
    options = parse(
        [
            repository,
            "--backend-config=python,default-max-batch-size=8",
            "--backend-config=default-max-batch-size=2",
            "--backend-config=cmdline=a,b",
        ],
        {},
    )
    assert options.backend_settings("python") == {"default-max-batch-size": "8", "cmdline": "a,b"}
    assert options.backend_settings("onnxruntime") == {"default-max-batch-size": "2", "cmdline": "a,b"}


def test_latency_metrics_are_switched_one_by_one(repository: str) -> None:
    options = parse([repository], {})
    assert (options.metrics.counter_latencies, options.metrics.histogram_latencies) == (True, False)
    settings = ["--metrics-config=counter_latencies=false", "--metrics-config", "histogram_latencies=true"]
    options = parse([repository, *settings], {})
    assert (options.metrics.counter_latencies, options.metrics.histogram_latencies) == (False, True)


def test_a_file_of_custom_metrics_is_yaml_or_python(repository: str) -> None:
    assert parse([repository], {}).metrics.custom_metrics == ""
    assert parse([repository, "--metrics-config=custom_metrics=/m/a.yaml"], {}).metrics.custom_metrics == "/m/a.yaml"
    (problem,) = problems([repository, "--metrics-config=custom_metrics=/m/a.so"])
    assert "custom_metrics=<file>.yaml|<file>.py" in problem


def test_restrictions_accumulate_without_showing_secrets(repository: str) -> None:
    environ = {"CONCH_GRPC_RESTRICTED_PROTOCOL": "health,metadata:key=hidden;inference:key=hidden"}
    options = parse([repository, "--http-restricted-api=trace:key=hidden"], environ)
    assert options.grpc_restricted_protocol == ("health,metadata:key=hidden", "inference:key=hidden")
    assert options.http_restricted_api == ("trace:key=hidden",)
    assert "hidden" not in repr(options)


@pytest.mark.parametrize("text", ["hidden", "health:hidden", "health,:key=hidden", ":key=hidden", "health:=hidden"])
def test_the_problem_of_a_restriction_omits_its_secret(repository: str, text: str) -> None:
    assert problems([repository, f"--http-restricted-api={text}"]) == (
        "--http-restricted-api: expected the form <category>,…:<key>=<value>, got another value",
    )


def test_summaries_have_quantiles(repository: str) -> None:
    options = parse([repository, "--metrics-config=summary_latencies=true"], {})
    assert options.metrics.summary_latencies
    assert options.metrics.summary_quantiles == (0.5, 0.9, 0.95, 0.99, 0.999)
    options = parse([repository, "--metrics-config=summary_quantiles=0.5:0.05,0.75"], {})
    assert not options.metrics.summary_latencies
    assert options.metrics.summary_quantiles == (0.5, 0.75)


@pytest.mark.parametrize("error", ["0.0.1", "0.01abc", "1e-3", ".01", ""])
def test_of_an_error_of_a_quantile_the_leading_number_counts(repository: str, error: str) -> None:
    options = parse([repository, f"--metrics-config=summary_quantiles=0.1:{error}"], {})
    assert options.metrics.summary_quantiles == (0.1,)


@pytest.mark.parametrize("quantiles", ["0.1:x", "0.1:2.0.1", "x", "1.5:0.1", "0.5:0.05,", "0.5:-1"])
def test_invalid_quantiles_are_refused(repository: str, quantiles: str) -> None:
    (problem,) = problems([repository, f"--metrics-config=summary_quantiles={quantiles}"])
    assert "summary_quantiles=<q>:<error>" in problem


# ---- Triton's flags without a counterpart ----------------------------------------------------------------------------


def test_a_flag_without_effect_is_accepted_with_one_notice(repository: str) -> None:
    options = parse([repository, "--http-thread-count=4", "--http-thread-count=8"], {})
    assert options.notices == ("--http-thread-count has no effect: one event loop serves all connections",)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("--model-load-gpu-limit=-1:0.6", "expected a GPU's number and a fraction from 0 to 1, such as 0:0.9"),
        ("--model-load-gpu-limit=0:1.5", "expected a GPU's number and a fraction from 0 to 1, such as 0:0.9"),
        ("--model-load-gpu-limit=0:nan", "expected a GPU's number and a fraction from 0 to 1, such as 0:0.9"),
        ("--host-policy=p,cpu-cores=4096", "policy 'p' has core 4096, which this process may not use"),
        ("--host-policy=p,cpu-cores=3-", "expected the form <policy>,numa-node=<n>"),
        ("--host-policy=p,numa-node=999", "no such NUMA node with cores as that of policy 'p'"),
        ("--host-policy=p,color=red", "expected the form <policy>,numa-node=<n>"),
        ("--sagemaker-safe-port-range=9-1", "expected a range of ports such as 9000-9999"),
    ],
)
def test_wrong_devices_cores_and_ports_are_refused(repository: str, argument: str, problem: str) -> None:
    (text,) = problems([repository, argument])
    assert problem in text


def test_other_ports_must_be_in_the_safe_range_of_sagemaker(repository: str) -> None:
    flags = ["--allow-sagemaker=true", "--sagemaker-safe-port-range=8000-8001"]
    (problem,) = problems([repository, *flags])
    assert problem == "--metrics-port: the port 8002 is not in --sagemaker-safe-port-range=8000-8001"
    parse([repository, "--sagemaker-safe-port-range=8000-8001"], {})


def test_a_number_of_cores_is_taken_from_a_policy(repository: str) -> None:
    first = min(os.sched_getaffinity(0))
    options = parse([repository, f"--host-policy=p,cpu-cores={first}", "--host-policy=p,numa-node=7"], {})
    assert options.policy_cores == {"p": frozenset({first})}


def test_vertex_ai_is_served_in_its_environment(repository: str) -> None:
    variables = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "8085", "AIP_STORAGE_URI": "gs://bucket/models"}
    options = parse([], variables)
    assert (options.allow_vertex_ai, options.allow_http, options.allow_grpc) == (True, False, False)
    assert (options.vertex_ai_port, options.model_repository) == (8085, ("gs://bucket/models",))
    chosen = parse([repository, "--allow-http=true", "--vertex-ai-port=9"], variables)
    assert (chosen.allow_http, chosen.vertex_ai_port) == (True, 9)
    assert chosen.model_repository == (repository.partition("=")[2],)


@pytest.mark.parametrize("argument", ["--cache-config=local,size=1048576", "--response-cache-byte-size=1048576"])
def test_the_size_of_the_cache_has_two_names(repository: str, argument: str) -> None:
    assert parse([repository, argument], {}).cache_bytes == 1048576
    assert parse([repository, "--response-cache-byte-size=0"], {}).cache_bytes == 0


@pytest.mark.parametrize(
    "argument",
    [
        "--cache-config=redis",
        "--cache-config=local",
        "--cache-config=,size=1048576",
        "--cache-config=local,size=127",
        "--cache-config=local,size=many",
        "--cache-config=1048576",
        "--response-cache-byte-size=127",
    ],
)
def test_an_unknown_or_too_small_cache_is_refused(repository: str, argument: str) -> None:
    (problem,) = problems([repository, argument])
    flag, _, text = argument.partition("=")
    assert problem.startswith(f"{flag}: expected ")
    assert problem.endswith(f", got '{text}'")


def test_the_size_of_the_cache_may_be_given_once(repository: str) -> None:
    (problem,) = problems([repository, "--cache-config=local,size=2048", "--response-cache-byte-size=2048"])
    assert problem == (  # Triton's words
        "Incompatible flags --response-cache-byte-size and --cache-config both provided. "
        "Please provide one or the other."
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (["local,size=8192", "redis,key=value"], "found multiple cache configurations, but only a single cache is "),
        (["memcached,host=localhost"], "--cache-config: cache 'memcached' is not supported; the caches are 'local'"),
        (["local,size=8192", "local,foo=1"], "--cache-config: the local cache has no setting 'foo'; expected local,"),
    ],
)
def test_other_caches_are_refused(repository: str, values: list[str], text: str) -> None:
    (problem,) = problems([repository, *(f"--cache-config={value}" for value in values)])
    assert problem.startswith(text)


def test_a_small_cache_starts_as_in_triton(repository: str) -> None:
    assert parse([repository, "--cache-config", "local,size=200"], {}).cache_bytes == 200
    assert parse([repository, "--cache-config=local,size=200", "--cache-config=local,size=300"], {}).cache_bytes == 300


def test_limits_of_resources_may_name_a_device(repository: str) -> None:
    given = ["--rate-limit=EXECUTION_COUNT", "--rate-limit-resource=R1:10", "--rate-limit-resource=R2:3:1"]
    options = parse([repository, *given], {})
    assert options.rate_limit == "execution_count"
    assert options.rate_limit_resource == (ResourceLimit("R1", 10), ResourceLimit("R2", 3, 1))


@pytest.mark.parametrize("text", ["R1", "R1:", ":1", "R1:-1", "R1:1:0:0", "R1:x", "R1:1:gpu"])
def test_a_limit_without_a_count_is_refused(repository: str, text: str) -> None:
    (problem,) = problems([repository, f"--rate-limit-resource={text}"])
    assert problem == f"--rate-limit-resource: expected the form <name>:<count>[:<device>], got '{text}'"


def test_strict_model_config_is_the_older_name_of_another_flag(repository: str) -> None:
    options = parse([repository, "--strict-model-config=true"], {})
    assert options.disable_auto_complete_config
    assert options.notices == ("--strict-model-config is deprecated; use --disable-auto-complete-config",)
    assert not parse([repository, "--strict-model-config=false"], {}).disable_auto_complete_config


@pytest.mark.parametrize("reverse", [False, True])
def test_disable_auto_complete_config_wins_over_its_older_name(repository: str, reverse: bool) -> None:
    flags = ["--disable-auto-complete-config", "--strict-model-config=false"]
    assert parse([repository, *(reversed(flags) if reverse else flags)], {}).disable_auto_complete_config


# ---- the table -------------------------------------------------------------------------------------------------------


def test_names_of_flags_are_unique() -> None:
    names = [name for flag in FLAGS for name in (flag.name, *flag.aliases)]
    assert sorted(names) == sorted(set(names))


def test_every_option_is_a_flag_but_the_notices_and_those_of_conch_run() -> None:
    others = {"notices", "port_attempts", "source", "unloads", "platform_variables"}
    assert {flag.attribute for flag in OWN_FLAGS} == {option.name for option in fields(ServerOptions)} - others


def test_every_flag_without_support_has_a_reason() -> None:
    for flag in TRITON_ONLY_FLAGS:
        assert flag.standing is not Standing.SUPPORTED
        assert flag.reason


def test_defaults_are_valid_values() -> None:
    for flag in FLAGS:
        if not flag.repeatable and not flag.replaced_by:
            assert flag.kind.read(str(flag.default)) == flag.default, flag.name


def test_options_can_be_made_by_hand() -> None:
    options = ServerOptions(http_port=0, http_address="127.0.0.1")
    assert options.metrics_address == "127.0.0.1"
    assert replace(options, http_port=1).http_port == 1


def test_repr_shows_options_that_are_not_defaults() -> None:
    assert repr(ServerOptions(http_port=0, metrics_address="::1")) == (
        "ServerOptions(http_port=0, metrics_address='::1')"
    )


def test_a_folder_without_its_flag_is_one_problem(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as raised:
        parse([str(tmp_path)], {})
    assert raised.value.problems == (
        f"unexpected argument '{tmp_path}'; did you mean '--model-repository={tmp_path}'?",
    )
