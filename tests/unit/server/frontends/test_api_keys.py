"""Key files: what they say, what is wrong with them, and what changes when they do."""

import asyncio
import logging
from pathlib import Path

import pytest

from conch.base.errors import ConfigError
from conch.protocols.access import api_keys
from conch.protocols.access.api_keys import ApiKeys
from conch.protocols.access.authorization import Access, Denial
from conch.protocols.access.restrictions import Restrictions

LINES = """
# who    scopes        key
ci       infer         key-of-ci
ops      manage,infer  key-of-ops
scraper  metrics       key-of-scraper
"""


def write(path: Path, text: str = LINES, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def keys_of(tmp_path: Path, **options) -> ApiKeys:
    keys = ApiKeys(write(tmp_path / "keys"), **options)
    keys.load()
    return keys


def name_of(keys: ApiKeys, authorization: bytes) -> str:
    key = keys.find(authorization)
    return key.name if key is not None else ""


def test_keys_are_bearer_tokens(tmp_path):
    keys = keys_of(tmp_path)
    assert name_of(keys, b"Bearer key-of-ci") == "ci"
    assert name_of(keys, b"bearer  key-of-ops ") == "ops"
    for wrong in (b"", b"Bearer", b"Bearer ", b"Basic key-of-ci", b"key-of-ci", b"Bearer key-of-c", b"Bearer \xff"):
        assert name_of(keys, wrong) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ci infer", "line 1 of .* is not of the form <name> <scope>"),
        ("# x\n\nci infer key more", "line 3"),
        ("ci infer,root hidden-key", "unknown scope 'root', expected infer, manage, metrics"),
        ("ci infer hidden-key\nci manage other", "line 2 .*the name is given more than once"),
        ("ci infer hidden-key\nops manage hidden-key", "line 2 .*the key is given more than once"),
        ("# nothing\n", "contains no keys"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said) as failed:
        ApiKeys(write(tmp_path / "keys", text)).load()
    assert "hidden-key" not in str(failed.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"--api-key-file: cannot read '.*': No such file"):
        ApiKeys(str(tmp_path / "keys")).load()
    with pytest.raises(ConfigError, match=r"--openai-api-key-file: cannot read"):
        ApiKeys("", (), str(tmp_path / "keys")).load()


def test_an_empty_file_is_named_with_its_flag(tmp_path):
    empty = write(tmp_path / "keys", "\n")
    with pytest.raises(ConfigError, match=r"^--api-key-file: .* contains no keys"):
        ApiKeys(empty).load()
    with pytest.raises(ConfigError, match=r"^--openai-api-key-file: .* contains no keys"):
        ApiKeys("", (), empty).load()


def test_a_file_that_others_may_read_is_warned_of(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        ApiKeys(write(tmp_path / "keys", mode=0o640)).load()
    assert "accessible to other users (mode 0640)" in caplog.text
    assert "key-of-ci" not in caplog.text


async def test_files_are_read_again_when_they_change(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(api_keys, "WATCH_S", 0.01)
    path = tmp_path / "keys"
    keys = keys_of(tmp_path)
    watch = asyncio.create_task(keys.watch())

    async def until_version(version: int) -> None:
        async with asyncio.timeout(60):
            while keys.version < version:
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.INFO):
        write(path, "late infer key-that-is-late")
        await until_version(2)
        assert (name_of(keys, b"Bearer key-that-is-late"), name_of(keys, b"Bearer key-of-ci")) == ("late", "")
        write(path, "late infer")
        async with asyncio.timeout(60):
            while "not reloaded" not in caplog.text:
                await asyncio.sleep(0.01)
        assert name_of(keys, b"Bearer key-that-is-late") == "late"
        write(path, "# no keys")
        await until_version(3)
        assert name_of(keys, b"Bearer key-that-is-late") == ""
    watch.cancel()


async def test_a_deleted_file_is_reported_again_and_again(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(api_keys, "WATCH_S", 0.01)
    monkeypatch.setattr(api_keys, "_REPEAT_S", 0.05)
    path = tmp_path / "keys"
    keys = keys_of(tmp_path)
    watch = asyncio.create_task(keys.watch())
    assert keys.up
    path.unlink()
    async with asyncio.timeout(60):
        while caplog.text.count("keeping the previous ones, 3 keys stay valid: --api-key-file: cannot read") < 3:
            await asyncio.sleep(0.01)
        assert not keys.up
        assert name_of(keys, b"Bearer key-of-ci") == "ci"
        write(path)
        while not keys.up:
            await asyncio.sleep(0.01)
    watch.cancel()


def test_what_each_scope_covers(tmp_path):
    access = Access(keys=keys_of(tmp_path))

    def why(category: str, *sent: bytes) -> Denial | None:
        denied = access.denied(category, lambda name: sent if name == "authorization" else ())
        return denied.why if denied is not None else None

    categories = {
        "infer": ("inference", "metadata", "model-config", "statistics", "model-health"),
        "manage": ("model-repository", "shared-memory", "trace", "logging"),
        "metrics": ("metrics",),
    }
    holders = {"infer": b"ci", "manage": b"ops", "metrics": b"scraper"}
    assert why("health") is None
    for scope, group in categories.items():
        for category in group:
            assert why(category, b"Bearer key-of-" + holders[scope]) is None
            assert why(category) is Denial.NO_KEY
            assert why(category, b"Bearer guess") is Denial.NO_KEY
            assert why(category, b"Bearer key-of-ci", b"Bearer key-of-ci") is Denial.REPEATED
            other = b"scraper" if scope != "metrics" else b"ops"
            assert why(category, b"Bearer key-of-" + other) is Denial.SCOPE


def test_keys_of_the_openai_api_cover_every_inference(tmp_path):
    keys = ApiKeys("", ["one"], write(tmp_path / "openai", "# more\ntwo\n"))
    keys.load()
    access = Access(keys=keys)
    for sent, allowed in (((b"Bearer one",), True), ((b"Bearer two",), True), ((b"Bearer three",), False), ((), False)):
        assert (access.denied("inference", lambda _, sent=sent: sent) is None) is allowed
        assert (access.denied("model-repository", lambda _, sent=sent: sent, openai=True) is None) is allowed
        assert access.denied("model-repository", lambda _, sent=sent: sent) is None


def test_beside_a_file_with_scopes_they_are_for_inference(tmp_path):
    keys = keys_of(tmp_path, openai_keys=["one", "key-of-scraper"])
    access = Access(keys=keys)

    def denied(category: str, key: bytes) -> bool:
        return access.denied(category, lambda _: (b"Bearer " + key,), openai=True) is not None

    assert not denied("inference", b"one")
    assert denied("model-repository", b"one")
    assert denied("inference", b"key-of-scraper")


def test_a_restricted_header_that_is_repeated():
    access = Access(Restrictions(["inference:Key=x"]))
    assert access.denied("inference", lambda _: (b"x",)) is None
    denied = access.denied("inference", lambda _: (b"x", b"x"))
    assert denied is not None
    assert denied.why is Denial.REPEATED
