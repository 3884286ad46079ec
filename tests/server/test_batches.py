"""/v1/files and /v1/batches of a real server, used by the official client."""

import json
import random
import re
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.models import write_scripted
from tests.support.server_process import ConchProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"
CHAT = "/v1/chat/completions"
TIMEOUT_S = 120
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"%b\r\n\r\n{}\r\n--x--\r\n'
)
ENDLESS: dict[str, Any] = {"model": "slow", "messages": [{"role": "user", "content": "word " * 10_000}]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batches") / "models"
    write_scripted(folder, "words", {"rules": [{"match": "weather", "reply": "It rains."}], "context_length": 400})
    write_scripted(folder, "slow", {"step_ms": 20, "context_length": 100_000})
    for name in ("sentences", "sentence_tokens", "sentence_encoder"):
        shutil.copytree(EXAMPLES / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConchProcess]:
    folder = tmp_path_factory.mktemp("server")
    keys = folder / "keys"
    keys.write_text("one infer key-one\ntwo infer key-two\nops manage,metrics key-ops\n")
    keys.chmod(0o600)
    flags = (f"--batch-dir={folder / 'batches'}", "--batch-max-bytes=400000", f"--api-key-file={keys}")
    with ConchProcess(models, *flags, log=folder / "log") as process:
        yield process


def connected(server: ConchProcess, key: str = "key-one") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{server.http}/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(server: ConchProcess) -> Iterator[openai.OpenAI]:
    with connected(server) as made:
        yield made
        for file in made.files.list():
            made.files.delete(file.id)


def line(custom_id: str, body: dict[str, Any], url: str = CHAT) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def asked(text: str, model: str = "words", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def uploaded(client: openai.OpenAI, content: bytes) -> str:
    return client.files.create(file=("lines.jsonl", content), purpose="batch").id


def begun(client: openai.OpenAI, content: bytes, endpoint: Any = CHAT, **more: Any) -> str:
    file_id = uploaded(client, content)
    return client.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", **more).id


def until(client: openai.OpenAI, batch_id: str, reached: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while not reached(batch := client.batches.retrieve(batch_id)):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
    return batch


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    return until(client, batch_id, lambda batch: batch.status in ("completed", "failed", "expired", "cancelled"))


def lines_of(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
    return {entry["custom_id"]: entry for entry in lines}


def test_a_batch_of_chats(client: openai.OpenAI) -> None:
    wanted = [line(f"line {number}", asked("weather")) for number in range(70)]
    wanted.append(line("absent", asked("weather", model="absent")))
    wanted.append(line("wrong", asked("weather", temperature="hot")))
    batch_id = begun(client, b"".join(wanted).rstrip(b"\n"), metadata={"purpose": "test"})
    batch = ended(client, batch_id)
    assert (batch.status, batch.errors, batch.metadata) == ("completed", None, {"purpose": "test"})
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (72, 70, 2)
    answers = lines_of(client, batch.output_file_id)
    assert sorted(answers) == sorted(f"line {number}" for number in range(70))
    answer = answers["line 5"]
    assert (answer["error"], answer["response"]["status_code"]) == (None, 200)
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == "It rains."
    errors = lines_of(client, batch.error_file_id)
    assert {name: entry["response"]["status_code"] for name, entry in errors.items()} == {"absent": 404, "wrong": 400}
    assert "temperature" in errors["wrong"]["response"]["body"]["error"]["message"]
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at < batch.expires_at
    assert batch_id in [listed.id for listed in client.batches.list(limit=1)]
    assert {file.purpose for file in client.files.list(purpose="batch", limit=1)} == {"batch"}
    assert [*client.files.list(purpose="assistants")] == []
    assert client.files.retrieve(batch.output_file_id).purpose == "batch_output"


def test_batches_of_completions_and_embeddings(client: openai.OpenAI) -> None:
    texts = begun(client, line("a", {"model": "words", "prompt": "Hi"}, "/v1/completions"), "/v1/completions")
    body = {"model": "sentences", "input": ["one", "two"]}
    vectors = begun(client, line("b", body, "/v1/embeddings"), "/v1/embeddings")
    completion = lines_of(client, ended(client, texts).output_file_id)["a"]["response"]["body"]
    assert completion["choices"][0]["text"] == "Hi"
    made = lines_of(client, ended(client, vectors).output_file_id)["b"]["response"]["body"]["data"]
    assert [len(entry["embedding"]) for entry in made] == [len(made[0]["embedding"])] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no lines"),
        (b"{}\n", "custom_id"),
        (b"[1]\n", "object"),
        (b'{"custom_id"\n', "parse"),
        (b"[" * 100_000 + b"\n", "parse|nested"),
        (b"\xff\xfe\x00\n", "parse"),
        (line("a", asked("x"), "/v1/embeddings"), "endpoint of the batch"),
        (line("a", asked("x"), "/v1/../v2/repository/index"), "endpoint of the batch"),
        (line("a", asked("x", stream=True)), "stream"),
        (line("a", asked("x")) * 2, "not unique"),
        (line("a", asked("x" * 130_000)), "bytes at most"),
    ],
)
def test_invalid_lines_fail_the_batch(client: openai.OpenAI, content: bytes, message: str) -> None:
    batch = ended(client, begun(client, content))
    assert (batch.status, batch.output_file_id) == ("failed", None)
    assert re.search(message, batch.errors.data[0].message)


def test_cancelled_batches_keep_their_results(client: openai.OpenAI) -> None:
    batch_id = begun(client, line("first", asked("weather")) + line("second", ENDLESS))
    until(client, batch_id, lambda batch: batch.request_counts.completed == 1)
    with pytest.raises(openai.BadRequestError, match="cancel that first"):
        client.files.delete(client.batches.retrieve(batch_id).input_file_id)
    assert client.batches.cancel(batch_id).status == "cancelling"
    batch = ended(client, batch_id)
    assert batch.status == "cancelled"
    assert "first" in lines_of(client, batch.output_file_id)
    with pytest.raises(openai.BadRequestError, match="status 'cancelled'"):
        client.batches.cancel(batch_id)


def test_batches_yield_to_clients(server: ConchProcess, client: openai.OpenAI) -> None:
    """A client's request aborts what runs of a batch; that runs again when no client has requests."""

    def wait_for(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, server.text
            time.sleep(0.02)

    wait_for(lambda: not generating(server))  # of the test before
    before = aborted(server)
    batch_id = begun(client, line("long", ENDLESS))
    wait_for(lambda: generating(server))
    answer = client.chat.completions.create(**asked("weather"))
    assert answer.choices[0].message.content == "It rains."
    wait_for(lambda: aborted(server) == before + 1)
    wait_for(lambda: generating(server))
    client.batches.cancel(batch_id)
    assert ended(client, batch_id).status == "cancelled"
    wait_for(lambda: aborted(server) == before + 2)


def test_files_belong_to_their_tenant(server: ConchProcess, client: openai.OpenAI) -> None:
    batch_id = begun(client, line("a", asked("weather")))
    batch = ended(client, batch_id)
    with connected(server, "key-two") as other:
        assert [*other.files.list()] == []
        assert [*other.batches.list()] == []
        for call in (
            lambda: other.files.retrieve(batch.output_file_id),
            lambda: other.files.content(batch.output_file_id),
            lambda: other.files.delete(batch.input_file_id),
            lambda: other.batches.retrieve(batch_id),
            lambda: other.batches.cancel(batch_id),
            lambda: other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError) as missing:
                call()
            assert missing.value.code is None
    with connected(server, "key-ops") as manager, pytest.raises(openai.PermissionDeniedError):
        manager.files.list()


@pytest.mark.parametrize("file_id", ["..%2f..%2fetc%2fpasswd", "file-../../lock", "lock", "file-" + "0" * 32, "%00"])
def test_ids_are_not_paths(server: ConchProcess, file_id: str) -> None:
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{file_id}"):
        with socket.create_connection(("127.0.0.1", server.ports["http"]), timeout=60) as made:
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key-one\r\nConnection: close\r\n\r\n"
            made.sendall(head.encode())
            answer = b""
            while data := made.recv(65536):
                answer += data
        assert answer.split()[1] == b"404"
        assert b"passwd:" not in answer


def test_uploads_are_bounded(server: ConchProcess, client: openai.OpenAI) -> None:
    kept = uploaded(client, b"x" * 150_000)
    with pytest.raises(openai.APIStatusError, match="batch-max-bytes") as full:
        uploaded(client, b"x" * 60_000)
    assert full.value.status_code == 413
    with connected(server, "key-two") as other:  # for whom half of the rest is left
        other.files.delete(uploaded(other, b"x" * 100_000))
    client.files.delete(kept)
    assert client.files.retrieve(uploaded(client, b"x" * 60_000)).bytes == 60_000
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("lines.jsonl", b"{}"), purpose="fine-tune")
    with pytest.raises(openai.BadRequestError, match="seconds"):
        client.files.create(
            file=("lines.jsonl", b"{}"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 10}
        )


def test_results_that_exceed_the_folder_fail_the_batch(client: openai.OpenAI) -> None:
    wanted = b"".join(line(f"{number}", asked(f"x{number} " * 190)) for number in range(100))
    batch = ended(client, begun(client, wanted))
    assert batch.status == "failed"
    assert "batch-max-bytes" in batch.errors.data[0].message
    assert batch.request_counts.completed == len(lines_of(client, batch.output_file_id))


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=x", b""),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n"),
        ("multipart/form-data; boundary=x", b"--x" + b"\r\n\r\n\r\n--x" * 1000 + b"--"),
        ("multipart/form-data; boundary=" + "x" * 1000, b"--" + b"x" * 1000 + b"--"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n',
        ),
        ("multipart/form-data; boundary=x", b"--x\r\n" + b"A: b\r\n" * 10_000 + b"\r\nbatch\r\n--x--\r\n"),
        # 60,000 of them took ten seconds.
        ("multipart/form-data; boundary=x" + ";" * 1000, FORM % b"; filename=a"),
        ("multipart/form-data; boundary=x", FORM % b"; filename*=undefined''%ff"),
        ("multipart/form-data; boundary=x", FORM % (b"; name*" + b"9" * 5000 + b"=x")),
    ],
)
def test_malformed_forms_are_refused(server: ConchProcess, content_type: str, body: bytes) -> None:
    headers = {"Content-Type": content_type, "Authorization": "Bearer key-one"}
    request = urllib.request.Request(f"http://{server.http}/v1/files", body, headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    with refused.value as answer:
        assert (answer.status, sorted(json.load(answer))) == (400, ["error"])


@pytest.mark.parametrize(
    "change",
    [
        {"endpoint": "/v2/repository/index"},
        {"completion_window": "999h"},
        {"input_file_id": "file-x"},
        {"metadata": {"a": 1}},
    ],
)
def test_malformed_batches_are_refused(client: openai.OpenAI, change: dict[str, Any]) -> None:
    document = {"input_file_id": uploaded(client, b"{}"), "endpoint": CHAT, "completion_window": "24h", **change}
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
        client.post("/batches", cast_to=object, body=document)


def test_tenants_take_turns(server: ConchProcess, client: openai.OpenAI) -> None:
    """A batch of a tenant, of a few turns, ends before as many batches of another."""
    with connected(server, "key-two") as other:
        stream = client.chat.completions.create(**ENDLESS, stream=True)  # until all have been created
        many = [begun(client, line("a", asked("word " * 40, "slow"))) for _ in range(8)]
        last = begun(other, b"".join(line(f"{number}", asked("weather")) for number in range(130)))
        stream.close()
        batch = ended(other, last)
        for file in other.files.list():
            other.files.delete(file.id)
    assert batch.status == "completed"
    assert batch.completed_at < max(ended(client, batch_id).completed_at for batch_id in many)


def test_batches_continue_after_a_restart(models: Path, tmp_path: Path) -> None:
    flags = (f"--batch-dir={tmp_path / 'batches'}",)
    quick = tmp_path / "models"
    write_scripted(quick, "words", {})
    write_scripted(quick, "slow", {"reply": "Done.", "context_length": 100_000})
    wanted = [line(f"{number}", asked("weather")) for number in range(5)]
    wanted.insert(3, line("slow", ENDLESS))
    with ConchProcess(models, *flags, log=tmp_path / "log") as first, connected(first) as client:
        batch_id = begun(client, b"".join(wanted))
        until(client, batch_id, lambda batch: batch.request_counts.completed >= 3)
        first.process.kill()
        first.process.wait()
        first.process.returncode = 0
    (part,) = (tmp_path / "batches").glob("*.part")
    with part.open("ab") as file:
        file.write(b'{"id":"batch_req_torn')
    with ConchProcess(quick, *flags, log=tmp_path / "log2") as second, connected(second) as client:
        batch = ended(client, batch_id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 6, 0)
        assert len(client.files.content(batch.output_file_id).text.splitlines()) == 6
        assert sorted(lines_of(client, batch.output_file_id)) == ["0", "1", "2", "3", "4", "slow"]
        large = random.Random(1).randbytes(3 * 2**20)
        answer = client.files.content(uploaded(client, large)).response
        assert (answer.content == large, answer.headers["transfer-encoding"]) == (True, "chunked")  # in pieces


def test_without_a_folder_the_error_names_the_flag(models: Path, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with ConchProcess(tmp_path / "models", log=tmp_path / "log") as server, connected(server) as client:
        for call in (client.files.list, client.batches.list, lambda: uploaded(client, b"{}")):
            with pytest.raises(openai.BadRequestError, match="--batch-dir"):
                call()


def generating(server: ConchProcess) -> bool:
    """Whether the slow model generates."""
    return value(server, r'vllm:num_requests_running{[^}]*model_name="slow"') > 0


def aborted(server: ConchProcess) -> float:
    """How many generations of the slow model were aborted."""
    return value(server, r'vllm:request_success_total{[^}]*finished_reason="abort"[^}]*model_name="slow"')


def value(server: ConchProcess, series: str) -> float:
    """The value of the metric whose series begins so."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.ports['metrics']}/metrics")
    request.add_header("Authorization", "Bearer key-ops")
    with urllib.request.urlopen(request, timeout=60) as response:
        match = re.search(rf"^{series}.*\s([0-9.e+]+)$", response.read().decode(), re.MULTILINE)
    return float(match[1]) if match else 0.0
