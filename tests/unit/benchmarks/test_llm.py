import json
import struct
from pathlib import Path

import numpy as np
import pytest
from benchmarks.llm.client import Events, has_text, usage
from benchmarks.llm.model import vocabulary, weights, write_checkpoint, write_gguf
from benchmarks.llm.report import GOALS, Measured, Sample, markdown, verdicts
from benchmarks.llm.systems import CONCH, RAW
from benchmarks.llm.timings import Stream, Timings, percentile
from benchmarks.llm.work import Job, Work
from gguf import GGUFReader

CHUNK = b'{"id":"cmpl-1","choices":[{"index":0,"text":%s,"finish_reason":null}],"usage":null}'
LAST = b'{"choices":[],"usage":{"prompt_tokens":16,"completion_tokens":128,"total_tokens":144}}'


@pytest.mark.parametrize("size", [1, 2, 3, 50, 1000])
def test_events_are_cut_wherever_the_body_was(size: int) -> None:
    events = [CHUNK % b'"a"', CHUNK % b'""', LAST, b"[DONE]"]
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    reader = Events()
    assert [e for start in range(0, len(body), size) for e in reader.feed(body[start : start + size])] == events


def test_only_chunks_with_text_count_and_only_the_last_tells_the_tokens() -> None:
    events = [CHUNK % b'"a"', CHUNK % b'"\\""', CHUNK % b'""', LAST, b"[DONE]"]
    assert [has_text(event) for event in events] == [True, True, False, False, False]
    assert [usage(event) for event in events] == [None, None, None, (16, 128), None]


def test_gaps_are_the_same_for_tokens_sent_singly_or_in_pairs() -> None:
    singly = Stream(0.0, chunks=[1.0, 1.5, 2.0, 2.5, 3.0], tokens=5)
    in_pairs = Stream(0.0, chunks=[1.0, 2.0, 3.0], tokens=5)
    assert singly.gaps() == [0.5] * 4
    assert in_pairs.gaps() == [0.5] * 2
    assert Stream(0.0, chunks=[1.0], tokens=1).gaps() == []


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7.0], 99) == 7
    assert percentile([], 50) == 0


@pytest.mark.parametrize("tokens", [16, 512])
def test_prompts_have_their_tokens_and_do_not_repeat(tokens: int) -> None:
    prompts = [prompt for seed in (1, 2) for prompt in Job(tokens, 5, 20, seed).prompts()]
    assert {len(prompt) for prompt in prompts} == {tokens}
    assert len(set(prompts)) == len(prompts)
    assert not any("  " in prompt or prompt != prompt.strip() for prompt in prompts)
    # No merge joins what prompts consist of, so a character is a token.
    merged = {character for merge in vocabulary()[1] for character in merge}
    assert not merged & set("".join(prompts).replace(" ", ""))


@pytest.mark.slow
def test_both_files_hold_the_same_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf")
    write_checkpoint(tmp_path / "checkpoint")
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "model.gguf").tensors}
    data = (tmp_path / "checkpoint" / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + size])
    for ours, theirs, array in weights():
        start, stop = head[theirs]["data_offsets"]
        stored = np.frombuffer(data[8 + size + start : 8 + size + stop], np.float16).reshape(head[theirs]["shape"])
        assert np.array_equal(tensors[ours], array)
        assert np.array_equal(stored, array)
    tokenizer = json.loads((tmp_path / "checkpoint" / "tokenizer.json").read_text())
    assert [*tokenizer["model"]["vocab"], *(token["content"] for token in tokenizer["added_tokens"])] == vocabulary()[0]


def sample(rate: float) -> Sample:
    zeros = dict.fromkeys(Timings.__dataclass_fields__, 0)
    return Sample(Timings(**{**zeros, "seconds": 1.0, "tokens": rate, "chunks": rate, "first_error": ""}), 2.0, 10**8)


def test_goals_compare_round_by_round() -> None:
    measured = Measured(Work(16, 30))
    for ours, theirs in ((960, 1000), (1920, 2000), (500, 1000)):
        measured.add(RAW, sample(theirs))
        measured.add(CONCH, sample(ours))
    (line,) = [line for line in verdicts([measured]) if "output" in line]
    assert line.endswith("output of conch ÷ raw 0.96 (0.50–0.96), to reach ≥ 0.95: yes")
    assert [goal.bound for goal in GOALS if goal.holds_for(Work(512, 1)) and goal.beside == RAW] == [0.85, 1.3]
    rows = markdown([measured]).splitlines()
    assert rows[2].startswith("| 16 | 30 | raw | 1,000 (1,000–2,000) |")
    assert len(rows) == 4
