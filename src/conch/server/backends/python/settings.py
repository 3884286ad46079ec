"""Settings of the python backend: `--backend-config=python,<key>=<value>`."""

from collections.abc import Mapping
from dataclasses import dataclass

from conch.base.errors import ConfigError

_MIB = 1 << 20
_DEFAULT_STOP_TIMEOUT_S = 30.0
SETTINGS = (
    "stub-timeout-seconds",
    "busy-poll-microseconds",
    "shm-default-byte-size",
    "shm-growth-byte-size",
    "shm-limit-byte-size",
)


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """How the python backend runs its processes. Sizes are bytes, of one direction of one instance."""

    # Timeout of `initialize`, `auto_complete_config`, `finalize`, and of batches in flight at the stop of an instance.
    # 0, the default: no timeout, since large models take minutes; but 30 s for a stop.
    stub_timeout_s: float = 0.0
    # How long a process polls for the next request of a client that sends one after the other; see `busy_poll`.
    busy_poll_us: int = 250
    # Shared memory that an idle instance keeps.
    shm_kept_size: int = _MIB
    # Shared memory that a busy instance may use; tensors beyond it travel through the socket.
    shm_limit_size: int = 1024 * _MIB

    @property
    def start_timeout_s(self) -> float | None:
        """`stub_timeout_s` as asyncio takes it: None for no timeout."""
        return self.stub_timeout_s or None

    @property
    def stop_timeout_s(self) -> float:
        """Timeout of a stop; there always is one."""
        return self.stub_timeout_s or _DEFAULT_STOP_TIMEOUT_S


def parse_settings(settings: Mapping[str, str]) -> PythonSettings:
    """Read the settings, which have Triton's names. Raises ConfigError for an invalid value.

    `shm-default-byte-size` is what an idle instance keeps. `shm-growth-byte-size` has no effect, since memory is
    allocated by the page, but must be a size. Triton does not have `shm-limit-byte-size` and `busy-poll-microseconds`.
    """
    default = PythonSettings()
    _number(settings, "shm-growth-byte-size", _MIB)
    return PythonSettings(
        stub_timeout_s=stub_timeout_s("python", settings),
        busy_poll_us=_number(settings, "busy-poll-microseconds", default.busy_poll_us),
        shm_kept_size=_number(settings, "shm-default-byte-size", default.shm_kept_size),
        shm_limit_size=max(_number(settings, "shm-limit-byte-size", default.shm_limit_size), _MIB),
    )


def stub_timeout_s(backend: str, settings: Mapping[str, str]) -> float:
    """Return the timeout for initializing a model, 0 for none. Raises ConfigError."""
    return float(_number(settings, "stub-timeout-seconds", 0, backend))


def _number(settings: Mapping[str, str], key: str, default: int, backend: str = "python") -> int:
    text = settings.get(key)
    if text is None:
        return default
    if not text.isdecimal():
        raise ConfigError(f"--backend-config={backend},{key}={text}: must be a whole number that is not negative")
    return int(text)
