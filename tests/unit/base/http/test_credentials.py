from pathlib import Path

import pytest

from conch.base.errors import ConfigError, InvalidRequest
from conch.base.http.credentials import check_no_credentials
from conch.clients.openai_client import OpenAIClient
from conch.operate.alerts.alertmanager_config import alertmanager_snippet
from conch.operate.alerts.read_configuration import read_configuration
from conch.operate.traces.read import read_traces
from conch.operate.tunnel.ssh_command import parse_target

URL = "http://user:sekret@127.0.0.1:9/"
REFUSED = r"^(--url )?'http://\*\*\*@127.0.0.1:9/': credentials in URLs are not supported"


@pytest.mark.parametrize("url", ["http://host/a@b", "https://host:1/?a=b@c", "file@1", "/a/b@c", "http://host"])
def test_an_at_sign_elsewhere_is_not_a_credential(url: str) -> None:
    check_no_credentials(url)


@pytest.mark.parametrize("url", ["http://a@host/", "https://a:b@host", "http://a:b@c@host/"])
def test_credentials_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ValueError, match=r"^'https?://\*\*\*@host/?': credentials in URLs are not supported$"):
        check_no_credentials(url)


def test_commands_refuse_credentials(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=REFUSED):
        read_traces([URL])
    with pytest.raises(InvalidRequest, match=REFUSED):
        OpenAIClient(URL)
    path = tmp_path / "alerts.yaml"
    path.write_text("targets: {own: {type: generic, url: 'http://127.0.0.1:9/'}}\n")
    with pytest.raises(ConfigError, match=REFUSED):
        alertmanager_snippet(read_configuration(path), URL)


def test_a_password_in_the_target_of_a_tunnel_is_not_repeated() -> None:
    with pytest.raises(ValueError, match=r"^'user:\*\*\*@host' is not a valid target"):
        parse_target("user:sekret@host")
