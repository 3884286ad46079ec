"""Settings of `--backend-config` that no backend reads."""

import re
from pathlib import Path

import pytest

import conch.server.backends
from conch.server.backends.registry import _REQUIREMENTS, _SETTINGS, unknown_settings


@pytest.mark.parametrize(
    ("backend", "key", "notice"),
    [
        ("python", "foo", "--backend-config=python,foo has no effect: backend 'python' has no setting 'foo'; it has: "),
        ("python", "shm_default_byte_size", "; did you mean 'shm-default-byte-size'? it has: busy-poll-microseconds, "),
        ("python", "env-path", "; the parameter EXECUTION_ENV_PATH in the config.pbtxt of a Python model names its"),
        ("vllm", "envpath", "did you mean 'env-path'?"),
        ("openvino", "NUM_STREAM", "did you mean 'NUM_STREAMS'?"),
        ("onnxruntime", "default-max-batchsize", "did you mean 'default-max-batch-size'?"),
        ("identity", "foo", "--backend-config=identity,foo has no effect: backend 'identity' has no setting 'foo'"),
        ("", "default_max_batch_size", "no backend has a setting 'default_max_batch_size'; did you mean 'default-max-"),
    ],
)
def test_an_unknown_setting_is_named_with_what_would_be_right(backend: str, key: str, notice: str) -> None:
    (got,) = unknown_settings([(backend, key)])
    assert notice in got


def test_known_settings_and_those_of_other_packages_pass() -> None:
    known = [(backend, key) for backend, keys in _SETTINGS.items() for key in keys]
    assert list(unknown_settings([*known, ("", "default-max-batch-size"), ("mirror", "anything")])) == []


def test_every_built_in_backend_has_an_entry() -> None:
    assert _SETTINGS.keys() == _REQUIREMENTS.keys()


def test_settings_that_the_code_or_the_docs_name_are_known() -> None:
    """Each literal key that a backend reads, and each setting of the documentation."""
    known = {key for keys in _SETTINGS.values() for key in keys}
    sources = Path(conch.server.backends.__file__).parent.rglob("*.py")
    read = {key for path in sources for key in re.findall(r'settings(?:\.get\(|\[)"([^"]+)"', path.read_text())}
    docs = Path(__file__).parents[4] / "docs"
    named = {
        (backend, key)
        for page in docs.rglob("*.md")
        for backend, key in re.findall(r"--backend-config=(\w+),([\w-]+)=", page.read_text())
    }
    assert read <= known
    assert named
    assert list(unknown_settings(named)) == []
