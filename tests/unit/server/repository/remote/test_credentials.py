"""Credentials in files."""

import json
from base64 import b64encode
from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.server.repository.remote.credentials import aws_settings, triton_credential
from conch.server.repository.remote.oci.registry import registry_login


def test_the_longest_prefix_of_tritons_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "cloud.json"
    file.write_text(json.dumps({"gs": {"": "any.json", "gs://b": "b.json", "gs://b/deep": "deep.json"}}))
    environ = {"TRITON_CLOUD_CREDENTIAL_PATH": str(file)}
    urls = ("gs://a", "gs://b/x", "gs://b/deep/er")
    assert [triton_credential("gs", url, environ) for url in urls] == ["any.json", "b.json", "deep.json"]
    assert triton_credential("s3", "s3://a", environ) is None
    file.write_text('{"s3": "hush"}')
    with pytest.raises(ConfigError, match="is not JSON of the form") as raised:
        triton_credential("s3", "s3://a", environ)
    assert "hush" not in str(raised.value)


def test_a_profile_is_read_from_two_files(tmp_path: Path) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text("[default]\naws_access_key_id=d\n[team]\naws_access_key_id=t\n"
                                        "aws_secret_access_key=a%b\n")  # fmt: skip
    (folder / "config").write_text("[profile team]\nregion=eu-west-1\nendpoint_url=http://host:1\n")
    environ = {"HOME": str(tmp_path)}
    assert aws_settings("s3://a", environ).key_id == "d"
    team = aws_settings("s3://a", environ | {"AWS_PROFILE": "team"})
    assert (team.key_id, team.secret_key, team.region, team.endpoint) == ("t", "a%b", "eu-west-1", "http://host:1")
    assert "a%b" not in repr(team)
    with pytest.raises(ConfigError, match="AWS profile 'nobody' is neither in"):
        aws_settings("s3://a", environ | {"AWS_PROFILE": "nobody"})


def test_keys_of_the_environment_take_precedence_over_a_profile(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "e", "AWS_PROFILE": "nobody", "AWS_DEFAULT_REGION": "r"}
    settings = aws_settings("s3://a", environ)
    assert (settings.key_id, settings.region) == ("", "r")  # the client reads the keys itself


def test_a_broken_file_is_named_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("aws_secret_access_key = hush\n")
    with pytest.raises(ConfigError, match=r"'.*credentials' is not an INI file") as raised:
        aws_settings("s3://a", {"HOME": str(tmp_path), "AWS_SHARED_CREDENTIALS_FILE": str(file)})
    assert "hush" not in str(raised.value)


def test_logins_of_registries(tmp_path: Path) -> None:
    environ = {"DOCKER_CONFIG": str(tmp_path)}
    assert registry_login("host.example", environ) is None
    auth = b64encode(b"me:secret").decode()
    auths = {"host.example": {"auth": auth}, "https://index.docker.io/v1/": {"identitytoken": "t"}, "host:5000": {}}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"auths": auths, "credHelpers": {"host:5000": "x"}}))
    login = registry_login("host.example", environ)
    assert login is not None
    assert (login.user, login.password) == ("me", "secret")
    assert "secret" not in repr(login)
    docker = registry_login("docker.io", environ)
    assert docker is not None
    assert docker.identity_token == "t"
    with pytest.raises(ConfigError, match="delegates the login of host:5000 to a credential helper"):
        registry_login("host:5000", environ)
    config.write_text('{"auths": {"host.example": {"auth": "&&"}}}')
    with pytest.raises(ConfigError, match=r"config\.json' cannot be read"):
        registry_login("host.example", environ)
