"""Images in chats that a real vLLM answers: a small Idefics3 of random weights, asked by the official client."""

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from PIL import Image as Pillow

from tests.server.backends.engines.gguf_model import CONTEXT
from tests.server.backends.engines.hf_model import TOKENS_PER_IMAGE, write_hf, write_idefics
from tests.server.backends.engines.vllm_environment import ENVIRONMENT, needs_vllm
from tests.support.server_process import ConchProcess

pytestmark = [*needs_vllm]

CONFIG = 'backend: "vllm" parameters { key: "EXECUTION_ENV_PATH" value { string_value: "%s" } }'
ARGUMENTS: dict[str, Any] = {
    "model": "model",
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 24,
    "block_size": 32,
}
MAX_IMAGES = 4
GREEDY: Any = {"max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True, "return_token_ids": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("vllm_images")
    for name, write, more in (
        ("eyes", write_idefics, {"limit_mm_per_prompt": {"image": MAX_IMAGES}}),
        ("words", write_hf, {}),
    ):
        version = folder / "repository" / name / "1"
        write(version / "model")
        (version / "model.json").write_text(json.dumps({**ARGUMENTS, **more}))
        (version.parent / "config.pbtxt").write_text(CONFIG % ENVIRONMENT)
    flags = ("--frontend-processes=2",)
    with ConchProcess(folder / "repository", *flags, log=folder / "log", start_limit_s=600) as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as made:
        yield made


def picture(
    color: str, size: tuple[int, int] = (40, 30), kind: str = "PNG", mode: str = "RGB", **options: Any
) -> bytes:
    file = io.BytesIO()
    Pillow.new(mode, size, color).save(file, kind, **options)
    return file.getvalue()


RED, BLUE = picture("red"), picture("blue")


def asked(*content: str | bytes) -> Any:
    parts = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": f"data:;base64,{base64.b64encode(part).decode()}"}}
        for part in content
    ]
    return [{"role": "user", "content": parts}]


def tokens(client: openai.OpenAI, *content: str | bytes) -> list[int]:
    answer = client.chat.completions.create(model="eyes", messages=asked(*content), **GREEDY)
    return list(answer.choices[0].token_ids)  # type: ignore[attr-defined]


def test_the_answer_depends_on_the_image(client: openai.OpenAI) -> None:
    red, blue, none = tokens(client, RED, "what"), tokens(client, BLUE, "what"), tokens(client, "what")
    assert len({tuple(red), tuple(blue), tuple(none)}) == 3
    assert tokens(client, RED, "what") == red
    lossless = picture("red", kind="WEBP", lossless=True)
    assert tokens(client, lossless, "what") == tokens(client, picture("red", kind="GIF"), "what") == red
    assert tokens(client, picture("red", mode="RGBA"), "what") == red
    assert tokens(client, RED, BLUE, "what") != tokens(client, BLUE, RED, "what")


def test_tokens_of_images_are_counted(server: ConchProcess, client: openai.OpenAI) -> None:
    def counted(*content: str | bytes) -> int:
        usage = client.chat.completions.create(model="eyes", messages=asked(*content), **GREEDY).usage
        assert usage is not None
        return usage.prompt_tokens

    with_images = counted(RED, BLUE, "what")
    # The template has a space before a text, and none before an image.
    assert with_images == counted("what") - 1 + 2 * TOKENS_PER_IMAGE
    body = {"model": "eyes", "messages": asked(RED, BLUE, "what")}
    assert httpx.post(f"http://{server.http}/tokenize", json=body).json()["count"] == with_images
    with anthropic.Anthropic(base_url=f"http://{server.http}", api_key="none", max_retries=0) as other:
        images = [
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(file).decode()},
            }
            for file in (RED, BLUE)
        ]
        message: Any = {"role": "user", "content": [*images, {"type": "text", "text": "what"}]}
        assert other.messages.count_tokens(model="eyes", messages=[message]).input_tokens == with_images
        answer = other.messages.create(model="eyes", messages=[message], max_tokens=4)
        assert answer.usage.input_tokens == with_images


def test_prefixes_of_other_images_are_not_reused(client: openai.OpenAI) -> None:
    def likelihoods(file: bytes) -> tuple[list[float], int]:
        messages = asked(file, "the sun and the rain " * 10)
        answer = client.chat.completions.create(model="eyes", messages=messages, logprobs=True, **GREEDY)
        logprobs_of_choice = answer.choices[0].logprobs
        assert logprobs_of_choice is not None
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        cached = details.cached_tokens if details is not None else 0
        return [token.logprob for token in logprobs_of_choice.content or []], cached or 0

    yellow, _ = likelihoods(picture("yellow"))
    cyan, cached_of_other = likelihoods(picture("cyan"))
    again, cached = likelihoods(picture("yellow"))
    assert again == pytest.approx(yellow, abs=1e-4) != pytest.approx(cyan, abs=1e-4)
    assert cached > 0 == cached_of_other


def test_images_of_refused_requests_are_sent_again(server: ConchProcess, client: openai.OpenAI) -> None:
    green = picture("green")
    body = {"model": "eyes", "messages": asked(green, "what")}
    assert httpx.post(f"http://{server.http}/tokenize", json=body).status_code == 200
    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {CONTEXT} tokens"):
        client.chat.completions.create(model="eyes", messages=asked(green, "what"), max_tokens=CONTEXT)
    assert len(tokens(client, green, "what")) == 8


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ([RED] * (MAX_IMAGES + 1), f"the model takes {MAX_IMAGES} in a request"),
        ([RED, "many " * 200], f"maximum context length is {CONTEXT} tokens"),
        ([RED[:60], "what"], "image 1 of the request cannot be decoded as PNG: the file is damaged"),
        ([RED, picture("red", kind="JPEG")[:400], "what"], "image 2 of the request cannot be decoded as JPEG"),
        ([picture("red", kind="WEBP")[:40], "what"], "cannot be decoded as WEBP"),
    ],
    ids=["count", "context", "png", "jpeg", "webp"],
)
def test_what_is_refused(client: openai.OpenAI, content: list[Any], reason: str) -> None:
    with pytest.raises(openai.BadRequestError, match=reason) as refused:
        tokens(client, *content)
    assert "0x" not in refused.value.message


def test_a_model_of_texts_takes_no_images(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="takes only text"):
        client.chat.completions.create(model="words", messages=asked(RED, "what"))


def test_hostile_images_end_no_engine(server: ConchProcess, client: openai.OpenAI) -> None:
    """Sizes at which vLLM and its processors have failed, and placeholders that a client writes."""
    before = tokens(client, "what")
    sizes = [(1, 1), (1, 3000), (3000, 1), (2, 33), (16_000, 2000)]
    for file in [*(picture("red", size) for size in sizes), picture("red", mode="P"), picture("red", mode="LA")]:
        assert len(tokens(client, file, "what")) == 8
    rotated = Pillow.Exif()
    rotated[Pillow.ExifTags.Base.Orientation] = 6
    assert len(tokens(client, picture("red", kind="JPEG", exif=rotated), "what")) == 8
    for forged in ("<image>", "<image>" * 40, "<fake_token_around_image><global-img><image>", "<row_1_col_1><image>"):
        for content in ([forged], [RED, forged], [forged, RED]):
            assert len(tokens(client, *content)) == 8
    with pytest.raises(openai.BadRequestError, match="cannot place the images in the prompt"):
        client.chat.completions.create(
            model="eyes", messages=asked(RED, "what " * 20), extra_body={"truncate_prompt_tokens": 4}
        )
    assert tokens(client, "what") == before
    restarts = [line for line in server.metrics().splitlines() if line.startswith("conch_process_restarts_total")]
    assert restarts
    assert all(line.endswith(" 0") for line in restarts)
