"""What the server is started with."""

from typing import Annotated, Literal

from msgspec import Meta

from conch.operate.deployment.values.section import PositiveCount, Section


class ServerValues(Section, frozen=True):
    """Flags of `conch serve`: docs/reference/flags.md."""

    exit_timeout_secs: Annotated[
        PositiveCount, Meta(description="--exit-timeout-secs: time for requests in flight after SIGTERM")
    ] = 30
    model_control_mode: Annotated[
        Literal["none", "poll", "explicit"],
        Meta(description="--model-control-mode; loadModels makes it explicit"),
    ] = "none"
    load_models: Annotated[
        tuple[str, ...], Meta(description="--load-model: the models to load at start; empty: all of the repository")
    ] = ()
    limits_kubernetes: Annotated[
        bool, Meta(description="--limits-kubernetes: follow limits in annotations of the workload; creates a Role")
    ] = False
    log_format: Annotated[Literal["default", "ISO8601", "json"], Meta(description="--log-format")] = "default"
    extra_args: Annotated[
        tuple[str, ...], Meta(description="More flags of `conch serve`, such as --log-verbose=1")
    ] = ()
