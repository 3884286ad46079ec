"""`--backend-config=python,<key>=<value>`."""

from collections.abc import Mapping
from dataclasses import dataclass

from conch.errors import ConfigError

_MIB = 1 << 20
# How long a process may take to end where no other limit is set.
_STOP_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class PythonSettings:
    """How the python backend runs its processes. Sizes are bytes, of one direction of one instance."""

    # How long `initialize`, `auto_complete_config` and `finalize` may take, and a batch that is under way at the end.
    # 0, the default: any time, since large models take minutes; an end takes 30 s at most all the same.
    stub_timeout_s: float = 0.0
    # How long a process may look for the next request of a client that asks one after the other; see `busy_poll`.
    busy_poll_us: int = 250
    # Shared memory that an idle instance keeps.
    shm_kept_size: int = _MIB
    # Shared memory that a busy instance may use; tensors beyond it travel through the socket.
    shm_limit_size: int = 1024 * _MIB

    @property
    def time_limit_s(self) -> float | None:
        """`stub_timeout_s` in the form that asyncio takes: None for no limit."""
        return self.stub_timeout_s or None

    @property
    def stop_limit_s(self) -> float:
        """How long an end may take; there always is a limit."""
        return self.stub_timeout_s or _STOP_LIMIT_S


def parse_settings(settings: Mapping[str, str]) -> PythonSettings:
    """Read the settings, under Triton's names and two of ours. Raises ConfigError for a value that makes no sense.

    `shm-default-byte-size` is what an idle instance keeps. `shm-growth-byte-size` has no use, since memory is taken by
    the page, but must be a size. `shm-limit-byte-size` and `busy-poll-microseconds` are ours.
    """
    default = PythonSettings()
    _size(settings, "shm-growth-byte-size", _MIB)
    return PythonSettings(
        stub_timeout_s=stub_timeout_s("python", settings),
        busy_poll_us=int(_number(settings, "busy-poll-microseconds", default.busy_poll_us)),
        shm_kept_size=_size(settings, "shm-default-byte-size", default.shm_kept_size),
        shm_limit_size=max(_size(settings, "shm-limit-byte-size", default.shm_limit_size), _MIB),
    )


def stub_timeout_s(backend: str, settings: Mapping[str, str]) -> float:
    """Return how long a model may take to initialize, 0 for any time. Raises ConfigError."""
    return _number(settings, "stub-timeout-seconds", 0.0, backend)


def _size(settings: Mapping[str, str], key: str, default: int) -> int:
    return int(_number(settings, key, default))


def _number(settings: Mapping[str, str], key: str, default: float, backend: str = "python") -> float:
    text = settings.get(key)
    if text is None:
        return default
    if not text.isdecimal():
        raise ConfigError(f"--backend-config={backend},{key}={text}: must be a whole number that is not negative")
    return float(text)
