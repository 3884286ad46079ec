"""Checks of several options together, of the files that they name, and of the variables that platforms set.

Hosting platforms set variables in a server's environment, from which options follow.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from conch.base.command_line.flag_values import words_of
from conch.server.options.server_options import ServerOptions
from conch.server.options.trace import check_trace_settings

_CHOICES = {
    "SAGEMAKER_TRITON_PING_MODE": ("ready", "live"),
    "SAGEMAKER_TRITON_INFERENCE_TYPE": ("infer", "generate", "generate_stream"),
}
_NAMES = (*_CHOICES, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE")


def platform_variables(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that the endpoints of platforms read, with their values."""
    return tuple((name, environ[name]) for name in _NAMES if environ.get(name))


def platform_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that follow from Vertex AI's variables, as in Triton. Flags have precedence over them."""
    options: dict[str, Any] = {}
    if environ.get("AIP_MODE") == "PREDICTION":
        options |= {"allow_vertex_ai": True, "allow_http": False, "allow_grpc": False}
        if environ.get("AIP_STORAGE_URI"):
            options["model_repository"] = (environ["AIP_STORAGE_URI"],)
    port = environ.get("AIP_HTTP_PORT", "")
    if port.isdecimal() and int(port) < 65536:
        options["vertex_ai_port"] = int(port)
    return options


def check_platform_variables(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable with an unknown value."""
    for name, choices in _CHOICES.items():
        if (value := variables.get(name, choices[0])) not in choices:
            yield f"{name} is '{value}'; expected one of {', '.join(choices)}"


_WILDCARD_ADDRESSES = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound
_REMOTE_SCHEMES = ("s3", "gs", "as", "oci", "http", "https")


def check_options(options: ServerOptions) -> list[str]:
    """Return one sentence for each contradiction between options and each missing file."""
    return [
        *_check_repositories(options),
        *_check_model_dir(options),
        *_check_ports(options),
        *_check_tls(options),
        *_check_cors(options),
        *_check_host_policies(options),
        *_check_log_file(options),
        *_check_host_proc(options),
        *_check_limits(options),
        *_check_cache(options),
        *check_trace_settings(options.trace_config),
        *check_platform_variables(dict(options.platform_variables)),
    ]


def _check_repositories(options: ServerOptions) -> Iterable[str]:
    if not options.model_repository and not options.model_dir:
        yield "--model-repository is missing: name the directory that holds the models"
    for path in options.model_repository:
        scheme, separator, _ = path.partition("://")
        if separator and scheme not in _REMOTE_SCHEMES:
            known = ", ".join(f"{scheme}://" for scheme in _REMOTE_SCHEMES)
            yield f"--model-repository: '{scheme}://' is not supported; expected a directory or one of {known}"
        elif separator:
            continue  # errors of remote repositories are reported when the models are read
        elif path.endswith(".py") and Path(path).is_file():
            continue  # models in Python: repository/python_app.py
        elif not Path(path).is_dir() and options.exit_on_error:  # without, the server starts anyway, as Triton's does
            yield f"--model-repository: {_not_a_directory(path)}"
    if options.load_model and options.model_control_mode != "explicit":
        yield (
            "Use of '--load-model' requires setting '--model-control-mode=explicit' as well; "
            f"it is {options.model_control_mode}"
        )
    if "*" in options.load_model and set(options.load_model) != {"*"}:
        yield "Wildcard model name '*' must be the ONLY startup model if specified at all: it loads every one"


def _not_a_directory(path: str) -> str:
    if Path(path).exists():
        return f"'{path}' is a file: 'conch run {path}' serves it, 'conch repo add {path}' adds it to ./models"
    return f"directory '{path}' does not exist; 'conch repo add' makes a repository from a model file"


def _check_model_dir(options: ServerOptions) -> Iterable[str]:
    if options.model_dir and not options.model_dir_wait_secs and not Path(options.model_dir).exists():
        yield (
            f"--model-dir: '{options.model_dir}' does not exist; --model-dir-wait-secs waits for one "
            "that another container creates"
        )
    for flag, given in (("--model-name", options.model_name), ("--allow-pickled-models", options.allow_pickled_models)):
        if given and not options.model_dir:
            yield f"{flag} is for --model-dir, which is missing"


def _check_ports(options: ServerOptions) -> Iterable[str]:
    services = [
        (allowed, flag, address, port)
        for allowed, flag, address, port in (
            (options.allow_http, "--http-port", options.http_address, options.http_port),
            (options.allow_grpc, "--grpc-port", options.grpc_address, options.grpc_port),
            (options.allow_metrics, "--metrics-port", options.metrics_address, options.metrics_port),
            (
                options.openai_port > 0,
                "--openai-port",
                options.openai_address or options.http_address,
                options.openai_port,
            ),
            (options.allow_sagemaker, "--sagemaker-port", options.http_address, options.sagemaker_port),
            (options.allow_vertex_ai, "--vertex-ai-port", options.http_address, options.vertex_ai_port),
        )
        if allowed and port
    ]
    first, _, last = options.sagemaker_safe_port_range.partition("-")
    if options.allow_sagemaker and last:
        for _, flag, _, port in services:
            if flag != "--sagemaker-port" and not int(first) <= port <= int(last):
                yield f"{flag}: the port {port} is not in --sagemaker-safe-port-range={first}-{last}"
    for index, (_, flag, address, port) in enumerate(services):
        for _, other, other_address, other_port in services[index + 1 :]:
            if port == other_port and _overlap(address, other_address):
                yield f"{flag} and {other} are both {port} at {address}; each service needs a separate port"


def _overlap(address: str, other: str) -> bool:
    return address == other or address in _WILDCARD_ADDRESSES or other in _WILDCARD_ADDRESSES


def _check_host_proc(options: ServerOptions) -> Iterable[str]:
    if options.host_proc and not Path(options.host_proc).is_dir():
        yield f"--host-proc: directory '{options.host_proc}' does not exist; mount /proc of the machine there"


def _check_host_policies(options: ServerOptions) -> Iterable[str]:
    usable = os.sched_getaffinity(0)
    for policy, cores in options.policy_cores.items():
        if not cores:
            yield f"--host-policy: the machine has no such NUMA node with cores as that of policy '{policy}'"
        elif missing := sorted(cores - usable):
            yield (
                f"--host-policy: policy '{policy}' has core {missing[0]}, which this process may not use; it may use "
                f"{','.join(map(str, sorted(usable)))}"
            )


def _check_tls(options: ServerOptions) -> Iterable[str]:
    for port, used in (("grpc", options.grpc_use_ssl), ("http", options.http_use_ssl or options.metrics_use_ssl)):
        if not used:
            continue
        mutual = getattr(options, f"{port}_use_ssl_mutual")
        required = ["server_cert", "server_key", *(["root_cert"] if mutual else [])]
        switch = f"--{port}-use-ssl-mutual" if mutual else f"--{port}-use-ssl"
        if port == "http" and not options.http_use_ssl:
            switch = "--metrics-use-ssl"
        for name in required:
            flag, path = f"--{port}-{name.replace('_', '-')}", getattr(options, f"{port}_{name}")
            if not path:
                yield f"{switch} needs {flag}"
            elif not Path(path).is_file():
                yield f"{flag}: the file '{path}' does not exist"


def _check_cors(options: ServerOptions) -> Iterable[str]:
    if options.allow_credentials and not options.allowed_origins:
        yield "--allow-credentials is for --allowed-origins, which is missing"
    elif options.allow_credentials and "*" in words_of(options.allowed_origins):
        yield "--allow-credentials needs --allowed-origins by name: with * every site could act as a server's user"


def _check_log_file(options: ServerOptions) -> Iterable[str]:
    if options.log_file and not Path(options.log_file).parent.is_dir():
        yield f"--log-file: directory '{Path(options.log_file).parent}' does not exist"


def _check_limits(options: ServerOptions) -> Iterable[str]:
    if options.limits_file and not Path(options.limits_file).is_file():
        yield f"--limits-file: there is no file '{options.limits_file}'"
    if options.limits_audit_log and not Path(options.limits_audit_log).absolute().parent.is_dir():
        yield f"--limits-audit-log: directory '{Path(options.limits_audit_log).parent}' does not exist"


def _check_cache(options: ServerOptions) -> Iterable[str]:
    settings = options.cache_config
    caches = list(dict.fromkeys(setting.cache for setting in settings))
    if settings and options.response_cache_byte_size:
        yield (
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    elif len(caches) > 1:
        names = ", ".join(f"'{cache}'" for cache in caches)
        yield f"found multiple cache configurations, but only a single cache is currently supported; got {names}"
    elif caches and caches[0] not in ("local", "redis"):
        yield f"--cache-config: cache '{caches[0]}' is not supported; the caches are 'local' and 'redis'"
    elif caches == ["redis"]:
        return
    elif unknown := next((setting.key for setting in settings if setting.size is None), None):
        yield f"--cache-config: the local cache has no setting '{unknown}'; expected local,size=<bytes>"
