"""What OpenVINO GenAI can do beyond what every engine does: structured answers, adapters, speculation."""

import asyncio
import json
from pathlib import Path

import pytest

from conch.base.errors import InvalidRequest, ModelLoadError
from conch.domain.generation import StructuredOutput, Usage
from tests.server.backends.engines.driving import Recorded, ask, begin, running
from tests.server.backends.engines.gguf_model import write_gguf
from tests.server.backends.engines.ir_model import write_adapter, write_ir

CHAT = Path(__file__).resolve().parents[4] / "examples" / "models" / "chat" / "1" / "model.gguf"
QUESTION = "<|im_start|>user\nWhat is Conch?<|im_end|>\n<|im_start|>assistant\n"
GREEDY = {"max_tokens": 12, "ignore_eos": True, "temperature": 0}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A version's directory."""
    made = tmp_path / "m" / "1"
    made.mkdir(parents=True)
    return made


def configure(directory: Path, **options: object) -> None:
    (directory / "model.json").write_text(json.dumps({"num_kv_blocks": 64, **options}))


@pytest.fixture(scope="module")
def ir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ir(tmp_path_factory.mktemp("ir") / "model")


async def test_structured_output_matches_and_an_invalid_schema_harms_no_other_request(directory: Path) -> None:
    write_gguf(directory / "model.gguf")
    configure(directory)
    async with running("openvino_genai", directory) as engine:
        plain = begin(engine, "the sun", max_tokens=300, ignore_eos=True, temperature=0)
        good = {
            StructuredOutput("regex", "[a-c]{3}-[0-9]{2}"): 6,
            StructuredOutput("choice", '["a.b", "a.b"]'): 3,
            StructuredOutput("grammar", 'root ::= "abcd"'): 4,
            StructuredOutput("json", '{"type": "integer", "minimum": 10, "maximum": 99}'): 2,
        }
        got = await asyncio.gather(
            *(ask(engine, "is", structured=structure, **GREEDY | {"ignore_eos": False}) for structure in good)
        )
        assert [len(answer.text()) for answer in got] == list(good.values())
        bad = [
            StructuredOutput("json", '{"type": 5}'),
            StructuredOutput("json", "no JSON"),
            StructuredOutput("json", '{"$ref": "#/nowhere"}'),
            StructuredOutput("regex", "("),
            StructuredOutput("grammar", "root ::="),
        ]
        for answer in await asyncio.gather(*(ask(engine, "is", structured=structure, **GREEDY) for structure in bad)):
            assert isinstance(answer.end, InvalidRequest)
            assert "cannot compile the " in str(answer.end)
        again = await ask(engine, "is", structured=bad[0], **GREEDY)
        assert isinstance(again.end, InvalidRequest)
        await asyncio.wait_for(plain.ended.wait(), 60)
        assert isinstance(plain.end, Usage), "it ran on beside them"


async def test_requests_with_different_adapters_take_turns(directory: Path, ir: Path) -> None:
    for number, name in enumerate(("loud", "quiet")):
        write_adapter(directory / f"{name}.safetensors", seed=number)
    (directory / "multi_lora.json").write_text('{"loud": "loud.safetensors", "quiet": "quiet.safetensors"}')
    configure(directory, model=str(ir))
    async with running("openvino_genai", directory) as engine:
        assert engine.info.adapters == ("loud", "quiet")

        def start(adapter: str) -> "asyncio.Future[Recorded]":
            return asyncio.ensure_future(ask(engine, "the sun is hot", adapter=adapter, **GREEDY))

        alone = {adapter: (await start(adapter)).tokens() for adapter in ("", "loud", "quiet")}
        assert len({tuple(tokens) for tokens in alone.values()}) == 3, "the adapters change nothing"
        mixed = ["", "loud", "loud", "quiet", "", "loud", "quiet", "quiet", ""]
        together = await asyncio.wait_for(asyncio.gather(*map(start, mixed)), 60)
        assert [got.tokens() for got in together] == [alone[adapter] for adapter in mixed]
        unknown = await ask(engine, "the sun", adapter="silent", **GREEDY)
        assert "loud, quiet" in str(unknown.end)


async def test_adapters_are_refused_where_they_would_be_ignored(directory: Path) -> None:
    write_gguf(directory / "model.gguf")
    write_adapter(directory / "loud.safetensors")
    (directory / "multi_lora.json").write_text('{"loud": "loud.safetensors"}')
    configure(directory)
    with pytest.raises(ModelLoadError, match="adapters need a model in OpenVINO's IR"):
        async with running("openvino_genai", directory):
            pass


async def test_speculation_changes_the_pace_and_no_token(directory: Path, tmp_path: Path) -> None:
    """With the shipped model, whose answers are sure: those of random weights hang on the last bit."""
    ir = write_ir(tmp_path / "ir", CHAT)
    answers = []
    for way in ({}, {"draft_model": str(ir)}, {"prompt_lookup": True}):
        configure(directory, model=str(ir), **way)
        async with running("openvino_genai", directory) as engine:
            answers.append(
                await asyncio.gather(*(ask(engine, QUESTION, max_tokens=60, temperature=0) for _ in range(3)))
            )
    plain, drafted, looked_up = answers
    assert plain[0].text().startswith("Conch is an inference server in Python.")
    assert {got.text() for got in (*plain, *drafted, *looked_up)} == {plain[0].text()}
    assert len(drafted[0].deltas) < len(plain[0].deltas) / 2, "the draft, the model itself, is always right"
