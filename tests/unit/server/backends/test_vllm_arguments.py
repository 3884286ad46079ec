"""What a repository's files say to vLLM, read without it."""

import json
from pathlib import Path
from typing import Any

import pytest

from conch.server.backends.child.conch_child.engine.driver import Refused
from conch.server.backends.child.conch_child.engine.vllm.arguments import read_adapters, read_arguments

KNOWN = {"model": "", "tokenizer": None, "enforce_eager": False, "max_num_seqs": None, "enable_log_requests": False}


def read(directory: Path, **arguments: Any) -> dict[str, Any]:
    (directory / "model.json").write_text(json.dumps(arguments))
    return read_arguments(directory, KNOWN)


def test_folders_are_beside_the_file_and_other_names_are_the_hubs(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    read_in = read(tmp_path, model="weights", tokenizer="some/name")
    assert read_in == {"model": str(tmp_path / "weights"), "tokenizer": "some/name"}
    assert read(tmp_path, model=str(tmp_path / "weights"))["model"] == str(tmp_path / "weights")
    with pytest.raises(Refused, match=r"model\.json: model '\./weight': there is no '"):
        read(tmp_path, model="./weight")


def test_a_model_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"model\.json: needs 'model': a folder beside model\.json"):
        read(tmp_path, max_num_seqs=1)


def test_what_is_unknown_is_refused_with_what_is_like_it(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="unknown key 'max_num_seq'; known: max_num_seqs and 4 other arguments"):
        read(tmp_path, model="m", max_num_seq=1)
    with pytest.raises(Refused, match="unknown key 'ä'; known: "):
        read(tmp_path, model="m", ä=1)


def test_switches_may_be_text_and_names_of_an_older_vllm(tmp_path: Path) -> None:
    assert read(tmp_path, model="m", enforce_eager="True")["enforce_eager"] is True
    assert read(tmp_path, model="m", disable_log_requests="true")["enable_log_requests"] is False
    assert read(tmp_path, model="m", disable_log_requests=False)["enable_log_requests"] is True


def test_adapters_must_be_there(tmp_path: Path) -> None:
    assert read_adapters(tmp_path) == {}
    (tmp_path / "multi_lora.json").write_text('{"red": "red"}')
    with pytest.raises(Refused, match=r"multi_lora\.json: adapter 'red': '.*red' has no adapter_config\.json"):
        read_adapters(tmp_path)
    (tmp_path / "red").mkdir()
    (tmp_path / "red" / "adapter_config.json").write_text("{}")
    assert read_adapters(tmp_path) == {"red": tmp_path / "red"}
