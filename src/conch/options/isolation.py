"""Options that keep the processes of models apart from the server."""

from dataclasses import dataclass

from conch.options.flag_field import flag_field as _flag
from conch.options.flag_values import BOOLEAN, TEXT


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IsolationOptions:
    """What processes of models get of the server's environment, and whether they may look into the server."""

    model_env_allow: tuple[str, ...] = _flag(
        (),
        "Backends",
        "Environment variables that processes of models and engines get, as a shell pattern such as AWS_*; all but "
        "CONCH_* if not given. PATH, HOME, locale, PYTHON* and the like need not be named.",
        TEXT,
        repeatable=True,
        separator=";",
    )
    model_env_deny: tuple[str, ...] = _flag(
        (),
        "Backends",
        "Environment variables that processes of models and engines do not get, as a shell pattern; wins over "
        "--model-env-allow.",
        TEXT,
        repeatable=True,
        separator=";",
    )
    process_debugging: bool = _flag(
        False,
        "Backends",
        "Let debuggers attach to the server and the system dump its core. The memory of the server, keys and requests "
        "with it, is then readable to processes of the same user, those of models included.",
        BOOLEAN,
    )
