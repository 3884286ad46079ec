"""Variables that hosting platforms set in a server's environment, and the options that follow from them."""

from collections.abc import Iterator, Mapping
from typing import Any

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
