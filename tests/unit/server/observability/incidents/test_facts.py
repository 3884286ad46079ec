"""The environment in a bundle holds what lists allow, and nothing else."""

import json

import pytest

from conch.server.observability.incidents.incidents import facts
from conch.server.options.parser import parse


def test_secrets_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "CONCH_OPENAI_API_KEY", "PASSWORD"):
        monkeypatch.setenv(name, "s3cret")
    flags = [
        "--model-repository=s3://user:s3cret@host/bucket",
        "--openai-api-key=s3cret",
        "--cache-config=redis,host=x",
        "--cache-config=redis,password=s3cret",
        "--exit-timeout-secs=7",
        "--http-restricted-api=inference:s3cret=s3cret",
    ]
    document = facts(parse([*flags, "--exit-on-error=false"], {}))
    assert "s3cret" not in json.dumps(document)
    assert document["variables"]["OMP_NUM_THREADS"] == "3"
    assert document["options"]["exit-timeout-secs"] == 7
    assert document["options"]["openai-api-key"] == "[given]"
    assert document["packages"]["numpy"]
