"""Find credentials of object stores: Triton's credential file, environment variables, AWS profiles.

Sources that the client library reads itself (its variables, credentials of the machine or the pod) are left to it.
"""

import configparser
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conch.base.errors import ConfigError

_TRITON_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"


@dataclass(frozen=True, slots=True, repr=False)
class AwsSettings:
    """Settings of S3. "" leaves a setting to the client library."""

    key_id: str = ""
    secret_key: str = ""
    session_token: str = ""
    region: str = ""
    endpoint: str = ""


def triton_credential(scheme: str, url: str, environ: Mapping[str, str]) -> Any:
    """Return the entry of Triton's credential file with the longest matching prefix, None if there is none.

    Raises ConfigError for a file that cannot be read, without quoting its contents.
    """
    path = environ.get(_TRITON_FILE)
    if not path:
        return None
    try:
        entries = json.loads(Path(path).read_text(encoding="utf-8")).get(scheme, {})
        matching = [prefix for prefix in entries if url.startswith(prefix)]
        return entries[max(matching, key=len)] if matching else None
    except OSError as error:
        raise ConfigError(f"{_TRITON_FILE}: '{path}' cannot be read: {error.strerror}") from error
    except (ValueError, AttributeError, TypeError) as error:
        form = '{"s3": {"s3://bucket": {"key_id": "…", "secret_key": "…"}}, "gs": {…}, "as": {…}}'
        raise ConfigError(f"{_TRITON_FILE}: '{path}' is not JSON of the form {form}") from error


def aws_settings(url: str, environ: Mapping[str, str]) -> AwsSettings:
    """Return the settings of an S3 repository, in order of precedence: Triton's file, environment, AWS profile."""
    entry = triton_credential("s3", url, environ)
    if entry is not None and not isinstance(entry, Mapping):
        raise ConfigError(f"{_TRITON_FILE}: an entry of 's3' must be an object with key_id and secret_key, or profile")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or ""
    if entry and entry.get("key_id"):
        return AwsSettings(
            key_id=str(entry["key_id"]),
            secret_key=str(entry.get("secret_key", "")),
            session_token=str(entry.get("session_token", "")),
            region=str(entry.get("region") or region),
        )
    if not entry and environ.get("AWS_ACCESS_KEY_ID"):
        return AwsSettings(region=region)  # the client library reads the variables
    profile = str((entry or {}).get("profile") or environ.get("AWS_PROFILE") or "")
    profile_values = _aws_profile(profile or "default", environ)
    if profile and not profile_values:
        raise ConfigError(f"AWS profile '{profile}' is neither in the shared credentials file nor in the config file")
    return AwsSettings(
        key_id=profile_values.get("aws_access_key_id", ""),
        secret_key=profile_values.get("aws_secret_access_key", ""),
        session_token=profile_values.get("aws_session_token", ""),
        region=str((entry or {}).get("region") or region or profile_values.get("region", "")),
        endpoint=profile_values.get("endpoint_url", ""),
    )


def _aws_profile(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return a profile's settings; the credentials file takes precedence over the config file."""
    home = Path(environ.get("HOME", "~")).expanduser() / ".aws"
    config = environ.get("AWS_CONFIG_FILE") or home / "config"
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"
    section = name if name == "default" else f"profile {name}"
    return _section(Path(config), section) | _section(Path(credentials), name)


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"AWS configuration '{path}' cannot be read: {error}") from error
    except configparser.Error as error:
        # The error's text quotes the line, which may contain a key.
        raise ConfigError(f"AWS configuration '{path}' is not an INI file: {type(error).__name__}") from error
    return dict(parser[name]) if parser.has_section(name) else {}
