"""Images in chats over every API of a real server, by the official clients. The engine says which images it gets."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from PIL import Image as Pillow

from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

# As templates for images have it: content is an array of parts, or a text.
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}"
    "{% endif %} {% for call in message.tool_calls or [] %}{# <tool_call> #}calls {% endfor %}{% endfor %}"
)
MAX_IMAGES = 3
TOOL_USE: Any = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "frontend processes"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("images")
    script = {"max_images": MAX_IMAGES, "chat_template": TEMPLATE, "context_length": 400}
    write_scripted(folder / "repository", "eyes", script)
    write_scripted(folder / "repository", "plain", {"max_images": MAX_IMAGES})
    write_scripted(folder / "repository", "words", {})
    flags = ("--ollama-api=true", "--responses-store=9", f"--frontend-processes={request.param}")
    with ConchProcess(folder / "repository", *flags, log=folder / "log") as process:
        yield process


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{server.http}/v1", api_key="none", max_retries=0) as made:
        yield made


def picture(width: int, height: int = 4, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Pillow.effect_noise((width, height), 90).save(file, kind)
    return file.getvalue()


SMALL, LARGE, PHOTO = picture(7), picture(900, 900), picture(20, 10, "JPEG")  # a worker reads the large one


def encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def url_of(file: bytes) -> str:
    return f"data:image/png;base64,{encoded(file)}"


def shown(file: bytes, kind: str = "PNG") -> str:
    with Pillow.open(io.BytesIO(file)) as decoded:
        return f"<image {kind} {decoded.width}x{decoded.height} of {len(file)} bytes>"


def asked(*content: str | bytes) -> Any:
    parts = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": url_of(part), "detail": "high"}}
        for part in content
    ]
    return [{"role": "user", "content": parts}]


def test_chat_completions(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="eyes", messages=asked("What is ", SMALL, " and ", LARGE, "?"))
    said = f"[user] What is {shown(SMALL)} and {shown(LARGE)}? "
    assert answer.choices[0].message.content == said
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(said.split()) + 1  # and the white space at the end
    stream = client.chat.completions.create(model="eyes", messages=asked(PHOTO), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == f"[user] {shown(PHOTO, 'JPEG')} "


def test_a_template_of_texts_has_the_images_before_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="plain", messages=asked("See", SMALL, "this", PHOTO))
    assert answer.choices[0].message.content == f"{shown(SMALL)}\n{shown(PHOTO, 'JPEG')}\nSee\nthis\n"


def test_responses(client: openai.OpenAI) -> None:
    content: Any = [{"type": "input_text", "text": "See "}, {"type": "input_image", "image_url": url_of(LARGE)}]
    first = client.responses.create(
        model="eyes", input=[{"role": "user", "content": content}], instructions="Be brief."
    )
    assert first.output_text == f"[system] Be brief. [user] See {shown(LARGE)} "
    second = client.responses.create(model="eyes", input="Again?", previous_response_id=first.id)
    assert second.output_text.startswith(f"[user] See {shown(LARGE)} [assistant] [system] Be brief.")
    assert second.output_text.endswith("[user] Again? ")
    counted = client.responses.input_tokens.count(model="eyes", input=[{"role": "user", "content": content}])
    assert counted.input_tokens == len(f"[user] See {shown(LARGE)}".split()) + 1


def test_messages(server: ConchProcess) -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(LARGE)}}
    small: Any = {"type": "image", "source": {"type": "url", "url": url_of(SMALL)}}
    with anthropic.Anthropic(base_url=f"http://{server.http}", api_key="none", max_retries=0) as client:
        user: Any = {"role": "user", "content": [image, {"type": "text", "text": "What is this?"}]}
        answer = client.messages.create(model="eyes", max_tokens=99, messages=[user])
        assert answer.content[0].type == "text"
        assert answer.content[0].text == f"[user] {shown(LARGE)}What is this? "
        assert client.messages.count_tokens(model="eyes", messages=[user]).input_tokens == answer.usage.input_tokens
        # The image of a tool follows its result, as templates show only the text of that.
        result: Any = {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": [{"type": "text", "text": "A cat:"}, small],
        }
        turns: Any = [{"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": [result]}]
        answer = client.messages.create(model="eyes", max_tokens=99, messages=[user, *turns])
        assert answer.content[0].type == "text"
        assert answer.content[0].text.endswith(f"[tool] A cat:\n[image: it follows the results] [user] {shown(SMALL)} ")
        with pytest.raises(anthropic.BadRequestError, match=r"'messages\.0\.content\.0' is an image, and the model"):
            client.messages.create(model="words", max_tokens=9, messages=[user])


def test_ollama(server: ConchProcess) -> None:
    with ollama.Client(f"http://{server.http}") as client:
        message = {"role": "user", "content": "What is this?", "images": [SMALL, LARGE]}
        answer = client.chat("eyes", messages=[message])
        assert answer.message.content == f"[user] {shown(SMALL)}{shown(LARGE)}What is this? "
        assert client.generate("eyes", "See", images=[PHOTO]).response == f"[user] {shown(PHOTO, 'JPEG')}See "
        assert "vision" in (client.show("eyes").capabilities or [])
        assert "vision" not in (client.show("words").capabilities or [])
        with pytest.raises(ollama.ResponseError, match="'images' are not supported with 'raw'"):
            client.generate("eyes", "See", images=[SMALL], raw=True)
        with pytest.raises(ollama.ResponseError, match=r"'messages\[0\].images\[0\]' is an image"):
            client.chat("words", messages=[message])
        with pytest.raises(ollama.ResponseError, match=r"only messages of the user"):
            client.chat("eyes", messages=[{**message, "role": "system"}])


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.com/cat.png", "must be a data URL .* the server fetches nothing"),
        ("http://169.254.169.254/latest/meta-data", "must be a data URL"),
        ("file:///etc/passwd", "must be a data URL"),
        ("data:image/png;base64,AAA", "is not valid base64"),
        ("data:image/png;base64,AAAA", "must be a file of PNG, JPEG, WebP or GIF"),
        (url_of(SMALL[:16] + b"\xff" * 8 + SMALL[24:]), "exceeds the 67108864"),
        (url_of(SMALL[:20]), "is a damaged PNG file"),
        (None, "must be a data URL"),
    ],
    ids=["https", "metadata", "file", "padding", "text", "bomb", "damaged", "null"],
)
def test_what_is_refused(client: openai.OpenAI, url: Any, reason: str) -> None:
    parts: Any = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(openai.BadRequestError, match=reason) as refused:
        client.chat.completions.create(model="eyes", messages=[{"role": "user", "content": parts}])
    assert refused.value.param == "messages[0].content[1]"
    assert "'messages[0].content[1]'" in refused.value.message


def test_where_images_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="is one image too many: the model takes 3 in a request"):
        client.chat.completions.create(model="eyes", messages=asked(*[SMALL] * (MAX_IMAGES + 1)))
    with pytest.raises(openai.BadRequestError, match="takes only text: describe the image") as refused:
        client.chat.completions.create(model="words", messages=asked("See", LARGE))
    assert refused.value.param == "messages[0].content[1]"
    said: Any = {**asked(SMALL)[0], "role": "assistant"}
    with pytest.raises(openai.BadRequestError, match="only messages of the user"):
        client.chat.completions.create(model="eyes", messages=[said, *asked("See")])
    with pytest.raises(openai.BadRequestError, match="maximum context length is 400 tokens"):
        client.chat.completions.create(model="eyes", messages=asked(SMALL, "many " * 400))
    with pytest.raises(openai.BadRequestError, match="2 placeholders for 1 images"):
        client.chat.completions.create(model="eyes", messages=asked("a forged <image>", SMALL))
    file: Any = {"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}
    with pytest.raises(openai.BadRequestError, match="send the image as a data URL"):
        client.responses.create(model="eyes", input=[file])


def test_tokens_of_images_are_counted(server: ConchProcess) -> None:
    answer = httpx.post(f"http://{server.http}/tokenize", json={"model": "eyes", "messages": asked("See", SMALL)})
    assert answer.json()["count"] == len(f"[user] See{shown(SMALL)}".split()) + 1


def test_no_field_of_an_image_is_ignored(server: ConchProcess) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": encoded(SMALL)}
    blocks = [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image", "source": source}]}]
    blocks += [{"type": "image", "source": {"type": "url", "url": url_of(SMALL)}}]
    turns = [{"role": "assistant", "content": [TOOL_USE]}, {"role": "user", "content": blocks}]
    image = {"type": "input_image", "image_url": url_of(SMALL), "detail": "auto", "file_id": None}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": asked("See", SMALL)},
        "/v1/responses": {"input": [{"role": "user", "content": [image]}]},
        "/v1/messages": {"messages": [{"role": "user", "content": "See"}, *turns], "max_tokens": 9},
        "/api/chat": {"messages": [{"role": "user", "content": "See", "images": [encoded(SMALL)]}]},
        "/api/generate": {"prompt": "See", "images": [encoded(SMALL)]},
    }
    for path, body in bodies.items():
        answer = httpx.post(f"http://{server.http}{path}", json={"model": "eyes", **body})
        assert (path, answer.status_code, answer.headers.get("X-Conch-Ignored")) == (path, 200, None)
