"""TensorRT-LLM without the library: arguments of its LLM API, and the conversion of its outputs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from conch.base.errors import ConfigError, ModelLoadError
from conch.domain.model_config import ModelConfig
from conch.server.backends.base import ModelSource
from conch.server.backends.child.conch_child.engine.driver import Refused, completion_room, visible_gpus
from conch.server.backends.child.conch_child.engine.tensorrtllm.arguments import read_arguments, require_gpus
from conch.server.backends.child.conch_child.engine.tensorrtllm.mapping import (
    guide,
    sampling,
    supported_params,
    usage,
)
from conch.server.backends.child.conch_child.engine.tensorrtllm.sequences import (
    OutputSequence,
    merge_streams,
    stream_deltas,
)
from conch.server.backends.tensorrtllm import TensorRtLlmBackend, refuse_parameters


@dataclass
class Logprob:
    logprob: float


@dataclass
class Output:
    """As much of `CompletionOutput` as is looked at."""

    token_ids_diff: list[int]
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs_diff: list[dict[int, Logprob]] = field(default_factory=list)


class Result:
    """As much of `RequestOutput` as is looked at: it yields itself at every step, changed."""

    def __init__(self, outputs: Sequence[Output], *, gate: asyncio.Event | None = None) -> None:
        self.outputs: list[Output] = []
        self.steps = 0
        self._outputs = outputs
        self._gate = gate

    async def __aiter__(self) -> AsyncIterator["Result"]:
        for output in self._outputs:
            if self._gate is not None:
                await self._gate.wait()
            self.steps += 1
            self.outputs = [output]
            yield self


def decode(many: list[list[int]]) -> list[str]:
    """A tokenizer whose tokens are bytes."""
    return [bytes(tokens).decode("utf-8", "replace") for tokens in many]


def test_what_is_not_said_is_sampled_as_vllm_does() -> None:
    assert sampling({}, 100) == {"max_tokens": 100, "detokenize": False, "temperature": 1.0, "top_p": 1.0, "top_k": 0}


def test_parameters_keep_their_meaning() -> None:
    given = sampling({"temperature": 0.5, "top_k": -1, "min_p": 0.1, "max_tokens": 7, "presence_penalty": 1.0}, 100)
    assert given == {
        "max_tokens": 7,
        "detokenize": False,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.1,
        "presence_penalty": 1.0,
    }


def test_temperature_zero_is_greedy_in_every_release() -> None:
    assert sampling({"temperature": 0, "top_k": 40, "top_p": 0.5}, 9) == {
        "max_tokens": 9,
        "detokenize": False,
        "top_k": 1,
    }


@pytest.mark.parametrize(("wanted", "asked"), [(None, None), (0, 1), (1, 1), (5, 5)])
def test_the_chosen_tokens_probability_alone_is_asked_for_as_one(wanted: int | None, asked: int | None) -> None:
    assert sampling({"logprobs": wanted}, 9).get("logprobs") == asked


@pytest.mark.parametrize(
    ("version", "arguments", "present", "absent"),
    [
        ("1.2.1", {}, "logit_bias", "repetition_penalty"),
        ("1.3.0rc24", {}, "repetition_penalty", "structured"),
        ("1.3.0", {"guided_decoding_backend": "xgrammar"}, "structured", "seed"),
        ("1.4.0rc1", {}, "seed", "structured"),
    ],
)
def test_what_is_honoured_depends_on_release_and_arguments(
    version: str, arguments: dict[str, Any], present: str, absent: str
) -> None:
    names = supported_params(version, arguments)
    assert present in names
    assert absent not in names


def test_sequences_of_a_request_have_distinct_seeds() -> None:
    assert [sampling({"seed": 7}, 9, index)["seed"] for index in range(2)] == [7, 8]
    assert sampling({"seed": -1}, 9)["seed"] == 2**64 - 1


def test_structures_have_their_guide() -> None:
    assert guide("json_object", "") == {"json_object": True}
    assert guide("json", "{}") == {"json": "{}"}
    assert guide("regex", "a+") == {"regex": "a+"}
    with pytest.raises(Refused, match="does not support structured output of kind 'choice'"):
        guide("choice", '["a"]')


def test_a_prompt_must_leave_room() -> None:
    assert completion_room(128, 100, {}) == 28
    assert completion_room(128, 100, {"max_tokens": 28}) == 28
    assert completion_room(128, 100, {"max_tokens": 29, "fit_max_tokens": True}) == 28
    with pytest.raises(Refused, match=r"maximum context length is 128 tokens. However, you requested 129 tokens"):
        completion_room(128, 100, {"max_tokens": 29})
    with pytest.raises(Refused, match="maximum context length is 128 tokens"):
        completion_room(128, 128, {})


def test_a_character_is_emitted_when_it_is_complete() -> None:
    sequence = OutputSequence(2, {}, decode)
    first, second = "é".encode()
    assert sequence.take(Output([97, first])) == (2, "", (97, first), None, None, ())
    assert sequence.take(Output([second])) == (2, "aé", (second,), None, None, ())
    assert not sequence.ended
    assert sequence.take(Output([98], "length")) == (2, "b", (98,), "length", None, ())
    assert sequence.ended
    assert sequence.tokens == 4


@pytest.mark.parametrize(
    ("theirs", "ours"), [("stop", "stop"), ("length", "length"), ("cancelled", "abort"), ("timeout", "abort")]
)
def test_every_end_has_a_reason(theirs: str, ours: str) -> None:
    assert OutputSequence(0, {}, decode).take(Output([97], theirs, 97))[3:5] == (ours, 97)


async def test_a_stop_string_over_several_tokens_ends_the_sequence() -> None:
    sequence = OutputSequence(0, {"stop": ["</s>"]}, decode)
    result = Result([Output([token]) for token in b"ab</s>never"])
    deltas = [delta async for delta in stream_deltas(sequence, result)]
    assert "".join(delta[1] for delta in deltas) == "ab"
    assert deltas[-1][3:5] == ("stop", "</s>")
    assert [delta[3] for delta in deltas[:-1]] == [None] * 5
    assert result.steps == sequence.tokens == 6


def test_the_chosen_token_comes_first_then_the_likeliest() -> None:
    logprobs = {97: Logprob(-3.0), 98: Logprob(-0.5), 99: Logprob(-1.0)}
    output = Output([97], logprobs_diff=[logprobs])
    assert OutputSequence(0, {"logprobs": 0}, decode).take(output)[5] == (((97, "a", -3.0),),)
    assert OutputSequence(0, {"logprobs": 1}, decode).take(output)[5] == (((97, "a", -3.0), (98, "b", -0.5)),)
    assert OutputSequence(0, {}, decode).take(output)[5] == ()


async def test_sequences_come_as_they_are_ready() -> None:
    gate = asyncio.Event()
    slow = Result([Output([97], "stop")], gate=gate)
    fast = Result([Output([98]), Output([99], "length")])
    told = []
    async for delta in merge_streams(
        [stream_deltas(OutputSequence(0, {}, decode), slow), stream_deltas(OutputSequence(1, {}, decode), fast)]
    ):
        told.append(delta[:2])
        if len(told) == 2:
            gate.set()
    assert told == [(1, "b"), (1, "c"), (0, "a")]


async def test_a_failed_sequence_ends_the_others() -> None:
    async def failing() -> AsyncIterator[tuple[Any, ...]]:
        raise RuntimeError("out of memory")
        yield ()

    endless = Result([Output([97])], gate=asyncio.Event())
    with pytest.raises(RuntimeError, match="out of memory"):
        async for _ in merge_streams([stream_deltas(OutputSequence(0, {}, decode), endless), failing()]):
            pass
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_statistics_become_shares_and_tokens() -> None:
    cache = {"usedNumBlocks": 25, "maxNumBlocks": 100, "tokensPerBlock": 32, "reusedBlocks": 4, "missedBlocks": 6}
    assert usage({"kvCacheStats": cache}) == (0.25, 320, 128)
    assert usage({}) == (0.0, 0, 0)


def test_arguments_are_read_from_json(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"model": "weights", "tensor_parallel_size": 2}')
    (tmp_path / "weights").mkdir()
    arguments = read_arguments(tmp_path)
    assert arguments["model"] == str(tmp_path / "weights")
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["guided_decoding_backend"] == "xgrammar"


def test_tritons_model_yaml_is_read_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("model: org/name\ntriton_config:\n  decoupled: true\n")
    arguments = read_arguments(tmp_path)
    assert arguments["model"] == "org/name"
    assert "triton_config" not in arguments
    (tmp_path / "model.yaml").write_text("model: [")
    with pytest.raises(Refused, match=r"model.yaml: while parsing"):
        read_arguments(tmp_path)


def test_a_name_on_the_hub_stays_one(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text('{"model": "TinyLlama/TinyLlama-1.1B-Chat-v1.0"}')
    assert read_arguments(tmp_path)["model"] == "TinyLlama/TinyLlama-1.1B-Chat-v1.0"


def test_arguments_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"model.json: 'model' must name a checkpoint"):
        read_arguments(tmp_path)
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "rank0.engine").write_bytes(b"")
    (tmp_path / "model.json").write_text('{"model": "engine"}')
    with pytest.raises(Refused, match="a folder with engines of trtllm-build"):
        read_arguments(tmp_path)


@pytest.mark.skipif(find_spec("tensorrt_llm") is not None, reason="tensorrt_llm is installed")
def test_without_the_package_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"has no package 'tensorrt_llm': pip install tensorrt-llm"):
        require_gpus({}, tmp_path)


@pytest.mark.skipif(find_spec("tensorrt_llm") is not None, reason="tensorrt_llm is installed")
def test_without_the_package_an_engine_cannot_be_made(tmp_path: Path) -> None:
    config = ModelConfig(name="m", backend="tensorrtllm", platform="", max_batch_size=0, inputs=(), outputs=())
    with pytest.raises(ModelLoadError, match=r"backend 'tensorrtllm' needs the package 'tensorrt_llm'"):
        TensorRtLlmBackend().engine(ModelSource(config, 1, tmp_path, {}))


def test_what_tritons_backend_for_engines_reads_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'gpt_model_path' of model 'm' .* set \"model\": the checkpoint"):
        refuse_parameters("m", {"gpt_model_path": "/engines/llama"})
    with pytest.raises(ConfigError, match=r"\"kv_cache_config\": \{\"free_gpu_memory_fraction\": …\} in model.json"):
        refuse_parameters("m", {"kv_cache_free_gpu_mem_fraction": "0.5"})
    refuse_parameters("m", {"gpt_model_path": "${engine_dir}", "max_beam_width": "", "EXECUTION_ENV_PATH": "/env"})


@pytest.mark.parametrize(
    ("visible", "count", "named"),
    [(None, 2, "GPU 0, GPU 1"), ("3, 1,2", 2, "GPU 3, GPU 1"), ("GPU-8f1c", 1, "GPU-8f1c")],
)
def test_gpus_are_named_as_the_machine_numbers_them(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int, named: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus(count) == named
