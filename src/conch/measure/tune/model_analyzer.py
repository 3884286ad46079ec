"""Model Analyzer's YAML for `model-analyzer profile`, read as settings of `conch tune`. Pure.

Source of the keys: model_analyzer/config/input/config_command_profile.py of version 1.58.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from conch.base.suggestion import did_you_mean
from conch.base.yaml_documents import YamlDocument, YamlError, YamlPath, load_documents
from conch.measure.tune.config_fields import FIELD_PREFIX
from conch.measure.tune.objective import METRICS, MODEL_ANALYZER_METRICS, Constraint, Goal, Objective
from conch.measure.tune.search.strategies import DEFAULT_STRATEGY
from conch.measure.tune.settings import SearchSettings, TrialSettings, TuneSettings
from conch.measure.tune.space import Value

_SEARCH_MODES = {"brute": "grid", "quick": "climb", "optuna": DEFAULT_STRATEGY}

# Keys without effect → why. They are accepted with a notice.
_LOCAL = "conch tune works on a running server"
_OUTPUT = "conch tune writes its report with --html and --json"
_ANALYZER = "Conch's own load generator measures"
_WITHOUT_EFFECT = {
    "config_file": "it names this file",
    "checkpoint_directory": "trials are kept in --state-dir",
    "model_repository": f"{_LOCAL}; --repository names the folder for --apply",
    "monitoring_interval": "metrics are read before and after each window",
    "duration_seconds": "--window sets the length of a measurement",
    "collect_cpu_metrics": "memory is reported where the server has it",
    "gpus": "all GPUs of --gpu-metrics-url are reported",
    "always_report_gpu_metrics": "GPU figures are reported where they are known",
    "dcgm_disable": "--gpu-metrics-url chooses the source",
    "skip_summary_reports": _OUTPUT,
    "skip_detailed_reports": _OUTPUT,
    "model_type": "the kind of a model is found by its configuration",
    "output_model_repository_path": "configurations are sent to the server, not written",
    "override_output_model_repository": "configurations are sent to the server, not written",
    "genai_perf_flags": _ANALYZER,
    "triton_server_flags": _LOCAL,
    "triton_server_environment": _LOCAL,
    "triton_docker_args": _LOCAL,
    "triton_docker_image": _LOCAL,
    "triton_docker_mounts": _LOCAL,
    "triton_docker_labels": _LOCAL,
    "triton_docker_shm_size": _LOCAL,
    "triton_launch_mode": _LOCAL,
    "triton_server_path": _LOCAL,
    "triton_install_path": _LOCAL,
    "triton_output_path": _LOCAL,
    "triton_grpc_endpoint": "--grpc-url names it",
    "weighting": "it weighs models that are profiled together",
    "cpu_only": "instance kinds stay as they are",
    "cpu_only_composing_models": "instance kinds stay as they are",
    "client_max_retries": "the server is awaited for a minute",
    "early_exit_enable": "the search ends by --share and --time-budget",
    "run_config_search_max_binary_search_steps": "concurrencies are a dimension of the search",
    "use_concurrency_formula": "concurrencies are a dimension of the search",
    "request_rate_search_enable": "request_rate lists the rates",
    "concurrency_sweep_disable": "concurrency lists the levels",
    "reload_model_disable": "a configuration needs a load",
    "min_percentage_of_search_space": "--share bounds the search",
    "optuna_early_exit_threshold": "the search ends by --share and --time-budget",
    "perf_analyzer_timeout": _ANALYZER,
    "perf_analyzer_cpu_util": "the load generator reports its own CPU time",
    "perf_analyzer_path": _ANALYZER,
    "perf_output": _OUTPUT,
    "perf_output_path": _OUTPUT,
    "perf_analyzer_max_auto_adjusts": _ANALYZER,
    "export_path": _OUTPUT,
    "filename_model_inference": _OUTPUT,
    "filename_model_gpu": _OUTPUT,
    "filename_server_only": _OUTPUT,
    "num_configs_per_model": _OUTPUT,
    "num_top_model_configs": _OUTPUT,
    "inference_output_fields": _OUTPUT,
    "gpu_output_fields": _OUTPUT,
    "server_output_fields": _OUTPUT,
    "plots": _OUTPUT,
}
_PER_MODEL = frozenset(
    {
        "cpu_only",
        "parameters",
        "objectives",
        "constraints",
        "weighting",
        "model_config_parameters",
        "perf_analyzer_flags",
        "genai_perf_flags",
        "triton_server_flags",
        "triton_server_environment",
        "triton_docker_args",
    }
)
_LIMITS = {
    "run_config_search_min_instance_count": 1,
    "run_config_search_max_instance_count": 5,
    "run_config_search_min_model_batch_size": 1,
    "run_config_search_max_model_batch_size": 128,
    "run_config_search_min_concurrency": 1,
    "run_config_search_max_concurrency": 1024,
    "run_config_search_min_request_rate": 16,
    "run_config_search_max_request_rate": 8192,
}
"""Limit of the automatic search → Model Analyzer's default."""
_READ = frozenset(
    {
        *_LIMITS,
        *(_PER_MODEL - _WITHOUT_EFFECT.keys()),
        "batch_sizes",
        "concurrency",
        "request_rate",
        "profile_models",
        "bls_composing_models",
        "ensemble_composing_models",
        "client_protocol",
        "latency_budget",
        "min_throughput",
        "run_config_search_mode",
        "run_config_search_disable",
        "run_config_profile_models_concurrently_enable",
        "max_percentage_of_search_space",
        "optuna_max_trials",
        "optuna_min_trials",
        "triton_http_endpoint",
        "triton_metrics_url",
    }
)
_FIELD_KNOBS = {
    "instance_group.count": "instances",
    "instance_group.kind": "instance_kind",
    "max_batch_size": "max_batch_size",
    "dynamic_batching.max_queue_delay_microseconds": "queue_delay_us",
    "dynamic_batching.preferred_batch_size": "preferred_batch_sizes",
}


class ProfileError(ValueError):
    """The file cannot be read as a profile; the message begins with file and line."""


@dataclass(frozen=True, slots=True)
class AnalyzerProfile:
    """Settings for each model of `profile_models`; notices on keys without effect."""

    runs: tuple[TuneSettings, ...]
    notices: tuple[str, ...]
    url: str | None = None


def read_profile(text: str, name: str) -> AnalyzerProfile:
    """Read a YAML file; `name` is its name in messages. Raises ProfileError."""
    try:
        documents = load_documents(text, unique_keys=True)
    except YamlError as error:
        raise ProfileError(f"{name}:{error.line}: {error}") from None
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise ProfileError(f"{name}:1: expected one mapping with the keys of model-analyzer profile")
    return _Reader(documents[0], name).profile()


class _Reader:
    def __init__(self, document: YamlDocument, name: str) -> None:
        self._document = document
        self._name = name
        self._notices: list[str] = []

    def profile(self) -> AnalyzerProfile:
        top = self._document.value
        self._check_keys(top, (), _READ | _WITHOUT_EFFECT.keys())
        if self._flag(top, "run_config_profile_models_concurrently_enable"):
            raise self._error(
                ("run_config_profile_models_concurrently_enable",),
                "models that are loaded together cannot be tuned together; profile them one by one, or as an ensemble",
            )
        models = list(self._models(top.get("profile_models"), ("profile_models",)))
        if not models:
            raise self._error((), "'profile_models' names no model")
        composing = self._composing(top)
        runs = tuple(self._run(top, model, own, path, composing) for model, own, path in models)
        endpoint = top.get("triton_http_endpoint")
        return AnalyzerProfile(runs, tuple(self._notices), None if endpoint is None else f"http://{endpoint}")

    def _run(
        self,
        top: Mapping[str, Any],
        model: str,
        own: Mapping[str, Any],
        path: YamlPath,
        composing: Mapping[str, Mapping[str, tuple[Value, ...] | None]],
    ) -> TuneSettings:
        if own:
            self._check_keys(own, path, _PER_MODEL)
        parameters = own.get("parameters") or {}
        known = frozenset({"batch_sizes", "concurrency", "request_rate"})
        self._check_keys(parameters, (*path, "parameters"), known)
        merged = {**{key: top[key] for key in known if key in top}, **parameters}
        return TuneSettings(
            model,
            goal=self._goal(top, own, path),
            knobs={**self._knobs(top, own, path), **composing},
            max_instances=top.get("run_config_search_max_instance_count"),
            composing=tuple(composing) or None,
            trial=self._trial(top, own, path, merged),
            search=self._search(top),
        )

    # Models

    def _models(self, value: Any, path: YamlPath) -> Iterator[tuple[str, dict[str, Any], YamlPath]]:
        """Yield name, settings and place of models: a list of names, a mapping, or a list of both."""
        if isinstance(value, str):
            value = [each.strip() for each in value.split(",")]
        if isinstance(value, dict):
            for model, own in value.items():
                yield str(model), self._mapping(own or {}, (*path, str(model))), (*path, str(model))
        elif isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, str):
                    yield each, {}, (*path, index)
                else:
                    yield from self._models(self._mapping(each, (*path, index)), (*path, index))
        elif value is not None:
            raise self._error(path, f"expected models, got {value!r}")

    def _composing(self, top: Mapping[str, Any]) -> dict[str, dict[str, tuple[Value, ...] | None]]:
        found: dict[str, dict[str, tuple[Value, ...] | None]] = {}
        for key in ("bls_composing_models", "ensemble_composing_models"):
            for model, own, path in self._models(top.get(key), (key,)):
                self._check_keys(own, path, _PER_MODEL)
                found[model] = self._knobs(top, own, path).get("", {})
        return found

    # Goal

    def _goal(self, top: Mapping[str, Any], own: Mapping[str, Any], path: YamlPath) -> Goal:
        objectives = self._objectives(own, path) or self._objectives(top, ()) or (Objective("throughput"),)
        constraints = self._constraints(own, path) or self._constraints(top, ())
        if "latency_budget" in top:
            constraints = (*constraints, Constraint("p99", maximum=self._number(top, "latency_budget", ()) / 1e3))
        if "min_throughput" in top:
            constraints = (*constraints, Constraint("throughput", minimum=self._number(top, "min_throughput", ())))
        return Goal(objectives, constraints)

    def _objectives(self, settings: Mapping[str, Any], path: YamlPath) -> tuple[Objective, ...]:
        given, path = settings.get("objectives"), (*path, "objectives")
        if isinstance(given, list):
            given = dict.fromkeys(given, 1)
        objectives = []
        for tag in self._mapping(given or {}, path):
            weight = self._number(given, tag, path)
            if weight <= 0:
                raise self._error((*path, tag), f"the weight of '{tag}' must be above 0, got {weight:g}")
            objectives.append(Objective(self._metric(tag, path), weight))
        return tuple(objectives)

    def _constraints(self, settings: Mapping[str, Any], path: YamlPath) -> tuple[Constraint, ...]:
        path = (*path, "constraints")
        found = []
        for tag, bounds in self._mapping(settings.get("constraints") or {}, path).items():
            metric = self._metric(tag, path)
            inner = (*path, tag)
            bounds = self._mapping(bounds, inner)
            self._check_keys(bounds, inner, frozenset({"min", "max"}))
            limits = {key: self._number(bounds, key, inner) * METRICS[metric].unit for key in bounds}
            found.append(Constraint(metric, limits.get("min"), limits.get("max")))
        return tuple(found)

    def _metric(self, tag: str, path: YamlPath) -> str:
        if tag not in MODEL_ANALYZER_METRICS:
            raise self._error(
                (*path, tag),
                f"unknown metric '{tag}'{did_you_mean(tag, MODEL_ANALYZER_METRICS)}; known: "
                f"{', '.join(MODEL_ANALYZER_METRICS)}",
            )
        return MODEL_ANALYZER_METRICS[tag]

    # Space

    def _knobs(
        self, top: Mapping[str, Any], own: Mapping[str, Any], path: YamlPath
    ) -> dict[str, dict[str, tuple[Value, ...] | None]]:
        """Return the manual sweep if there is one, else the automatic search within its limits."""
        if sweep := own.get("model_config_parameters"):
            path = (*path, "model_config_parameters")
            return {"": dict(self._sweep(self._mapping(sweep, path), "", path))}
        if self._flag(top, "run_config_search_disable"):
            return {"": {}}
        limits = {key: int(self._number(top, key, ())) for key in _LIMITS if key in top}
        low = limits.get("run_config_search_min_instance_count", 1)
        knobs: dict[str, tuple[Value, ...] | None] = {"instances": None, "max_batch_size": None, "queue_delay_us": None}
        if high := limits.get("run_config_search_max_instance_count"):
            knobs["instances"] = tuple(range(low, high + 1))
        smallest = limits.get("run_config_search_min_model_batch_size", 1)
        if largest := limits.get("run_config_search_max_model_batch_size"):
            knobs["max_batch_size"] = _doubling(smallest, largest)
        return {"": knobs} if limits else {}

    def _sweep(self, value: Any, field: str, path: YamlPath) -> Iterator[tuple[str, tuple[Value, ...]]]:
        """Yield knob and values for each field of a manual sweep."""
        if isinstance(value, dict):
            if not value and field == "dynamic_batching":
                yield "queue_delay_us", (0,)
            for key, inner in value.items():
                yield from self._sweep(inner, f"{field}.{key}" if field else str(key), (*path, str(key)))
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            if len(value) > 1:
                raise self._error(path, f"'{field}' has {len(value)} elements; one is supported")
            yield from self._sweep(value[0], field, (*path, 0))
        else:
            values = value if isinstance(value, list) else [value]
            name = _FIELD_KNOBS.get(field, f"{FIELD_PREFIX}{field}")
            if name == "preferred_batch_sizes":
                nested = values if any(isinstance(each, list) for each in values) else [values]
                values = [tuple(each) if isinstance(each, list) else (each,) for each in nested]
            elif any(isinstance(each, (list, dict)) for each in values):
                raise self._error(path, f"'{field}': lists within lists are not supported")
            yield name, tuple(dict.fromkeys(values))

    # Measurements

    def _trial(
        self, top: Mapping[str, Any], own: Mapping[str, Any], path: YamlPath, levels: Mapping[str, Any]
    ) -> TrialSettings:
        trial = TrialSettings(protocol=top.get("client_protocol", "http"), metrics_url=top.get("triton_metrics_url"))
        if trial.protocol not in ("http", "grpc"):
            raise self._error(("client_protocol",), f"expected http or grpc, got '{trial.protocol}'")
        place: YamlPath = (*path, "parameters") if own.get("parameters") else ()
        batches = self._numbers(levels, "batch_sizes", place)
        if len(batches) > 1:
            raise self._error((*place, "batch_sizes"), "one batch size is supported; run the tuner once for each")
        trial = replace(trial, batch_size=int(batches[0]) if batches else 1)
        concurrency = self._numbers(levels, "concurrency", place)
        rates = self._numbers(levels, "request_rate", place)
        low = int(top.get("run_config_search_min_concurrency", 1))
        if not concurrency and (high := top.get("run_config_search_max_concurrency")):
            concurrency = [*_doubling(low, high)]
        if not rates and (high := top.get("run_config_search_max_request_rate")):
            rates = [*_doubling(int(top.get("run_config_search_min_request_rate", 16)), high)]
        if concurrency:
            trial = replace(trial, concurrency=tuple(int(each) for each in concurrency))
        if rates:
            trial = replace(trial, rates=tuple(rates))
        flags_path: YamlPath = (
            (*path, "perf_analyzer_flags") if "perf_analyzer_flags" in own else ("perf_analyzer_flags",)
        )
        flags = own.get("perf_analyzer_flags", top.get("perf_analyzer_flags")) or {}
        return self._with_flags(trial, flags, flags_path)

    def _with_flags(self, trial: TrialSettings, flags: Any, path: YamlPath) -> TrialSettings:
        """Apply perf_analyzer's flags that have a meaning here."""
        for flag, value in self._mapping(flags, path).items():
            name = str(flag).lstrip("-")
            if name == "input-data":
                chosen = value[0] if isinstance(value, list) else value
                trial = replace(trial, input_data=None if chosen in ("random", "zero") else str(chosen))
            elif name == "shape":
                shapes = value if isinstance(value, list) else [value]
                pairs = [str(each).rpartition(":") for each in shapes]
                trial = replace(trial, shapes={key: tuple(map(int, dims.split(","))) for key, _, dims in pairs})
            elif name == "measurement-interval":
                trial = replace(trial, window_s=float(value) / 1e3)
            elif name in ("percentile", "stability-percentage", "max-trials", "collect-metrics", "metrics-url"):
                self._notice((*path, str(flag)), f"perf_analyzer's flag '{flag}' has no effect")
            else:
                raise self._error((*path, str(flag)), f"perf_analyzer's flag '{flag}' is not supported here")
        return trial

    def _search(self, top: Mapping[str, Any]) -> SearchSettings:
        search = SearchSettings()
        if (mode := top.get("run_config_search_mode")) is not None:
            if mode not in _SEARCH_MODES:
                raise self._error(("run_config_search_mode",), f"expected {', '.join(_SEARCH_MODES)}; got '{mode}'")
            search = replace(search, strategy=_SEARCH_MODES[mode])
            if mode == "brute":
                search = replace(search, share=1.0, max_trials=10_000)
        if "max_percentage_of_search_space" in top:
            search = replace(search, share=self._number(top, "max_percentage_of_search_space", ()) / 100)
        if "optuna_max_trials" in top:
            search = replace(search, max_trials=int(self._number(top, "optuna_max_trials", ())))
        if "optuna_min_trials" in top:
            search = replace(search, min_trials=int(self._number(top, "optuna_min_trials", ())))
        return search

    # Values

    def _mapping(self, value: Any, path: YamlPath) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(path, f"'{path[-1]}' must be a mapping, got {value!r}")
        return value

    def _number(self, settings: Any, key: str, path: YamlPath) -> float:
        value = settings[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._error((*path, key), f"'{key}' must be a number, got {value!r}")
        return float(value)

    def _numbers(self, settings: Mapping[str, Any], key: str, path: YamlPath) -> list[float]:
        """Read a number, a list, `1,2,4`, or Model Analyzer's range {start, stop, step}."""
        value = settings.get(key)
        if value is None:
            return []
        if isinstance(value, dict):
            self._check_keys(value, (*path, key), frozenset({"start", "stop", "step"}))
            if not {"start", "stop"} <= value.keys():
                raise self._error((*path, key), f"'{key}' needs 'start' and 'stop'")
            return [float(each) for each in range(value["start"], value["stop"] + 1, value.get("step", 1))]
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
        try:
            return [float(each) for each in parts]
        except (TypeError, ValueError):
            raise self._error((*path, key), f"'{key}' must be numbers, got {value!r}") from None

    def _flag(self, settings: Mapping[str, Any], key: str) -> bool:
        value = settings.get(key, False)
        if not isinstance(value, bool):
            raise self._error((key,), f"'{key}' must be true or false, got {value!r}")
        return value

    def _check_keys(self, settings: Mapping[str, Any], path: YamlPath, known: frozenset[str]) -> None:
        for key in settings:
            if key not in known:
                raise self._error((*path, str(key)), f"unknown key '{key}'{did_you_mean(str(key), known)}")
            if reason := _WITHOUT_EFFECT.get(key):
                self._notice((*path, key), f"'{key}' has no effect: {reason}")

    def _notice(self, path: YamlPath, text: str) -> None:
        self._notices.append(f"{self._name}:{self._document.line(path)}: {text}")

    def _error(self, path: YamlPath, text: str) -> ProfileError:
        return ProfileError(f"{self._name}:{self._document.line(path)}: {text}")


def _doubling(low: int, high: int) -> tuple[int, ...]:
    values = [low]
    while values[-1] * 2 <= high:
        values.append(values[-1] * 2)
    return tuple(values)
