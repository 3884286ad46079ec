"""The certificate of a listener is loaded again when its files change, and only then."""

import logging
from pathlib import Path

import pytest
import trustme

from conch.protocols.connections.tls import ReloadedTls, TlsFiles


def test_a_certificate_is_loaded_again_only_if_its_files_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "certificate", tmp_path / "key"
    issued = trustme.CA().issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(str(certificate))
    issued.private_key_pem.write_to_path(str(key))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    tls = ReloadedTls(TlsFiles("--http", str(certificate), str(key)), "http/1.1")
    with caplog.at_level(logging.INFO):
        Path("model.py").write_text("")
        tls.refresh()
        assert not caplog.messages
        certificate.touch()
        tls.refresh()
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "loaded the certificate --http-server-cert again"
    ]
