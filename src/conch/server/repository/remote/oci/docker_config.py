"""Read logins of registries from Docker's config.json."""

import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conch.base.errors import ConfigError


@dataclass(frozen=True, slots=True, repr=False)
class RegistryLogin:
    """A user and a password, or an identity token."""

    user: str = ""
    password: str = ""
    identity_token: str = ""


def registry_login(registry: str, environ: Mapping[str, str]) -> RegistryLogin | None:
    """Return the login of a registry from Docker's config.json, None if there is none.

    Raises ConfigError for a file that cannot be read or delegates the login to a credential helper.
    """
    folder = environ.get("DOCKER_CONFIG") or str(Path(environ.get("HOME", "~")).expanduser() / ".docker")
    path = Path(folder) / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        auths = document.get("auths", {})
        entry = next((auths[name] for name in _names(registry) if auths.get(name)), None)
        if entry is not None:
            return _login(entry)
        helped = registry in document.get("credHelpers", {})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"the credentials in '{path}' cannot be read: {type(error).__name__}") from error
    if helped:
        raise ConfigError(
            f"'{path}' delegates the login of {registry} to a credential helper, which is not supported; "
            "add an entry to 'auths'"
        )
    return None


def _names(registry: str) -> tuple[str, ...]:
    own = (registry, f"https://{registry}", f"http://{registry}", f"https://{registry}/v2/")
    return (*own, "https://index.docker.io/v1/", "index.docker.io") if registry == "docker.io" else own


def _login(entry: Mapping[str, str]) -> RegistryLogin:
    user, _, password = b64decode(entry.get("auth", ""), validate=True).decode().partition(":")
    return RegistryLogin(
        user=entry.get("username") or user,
        password=entry.get("password") or password,
        identity_token=entry.get("identitytoken", ""),
    )
