"""Models change while clients ask: every request is answered by one whole model or refused, and none is lost."""

import asyncio
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.server.load import Answer, GrpcClient, HttpClient, Load, Lost, Tally, until
from tests.support.models import ECHO, tensor, write_ensemble, write_python
from tests.support.server_process import ConchProcess

NUMBERS = f"input {tensor('INPUT0', 'INT32', -1)} output {tensor('OUTPUT0', 'INT32', -1)}"
EXPLICIT = ["--model-control-mode=explicit", "--load-model=*"]
PARTS = 4


def source(release: int) -> str:
    """A model that adds to what it is given the release of each of its parts: head, neighbour, configuration, tail."""
    return f"""
import json
import numpy as np
import triton_python_backend_utils as pb_utils
import neighbour

HEAD = {release}


class TritonPythonModel:
    TAIL = 0

    def initialize(self, args):
        self.configured = int(json.loads(args["model_config"])["parameters"]["release"]["string_value"])

    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, numbers):
        parts = [HEAD, neighbour.RELEASE, self.configured, self.TAIL]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.append(numbers, parts).astype(np.int32))])


TritonPythonModel.TAIL = {release}
"""


def write_release(root: Path, release: int, version: int = 1, extra: str = "") -> None:
    """Write all parts of a release of model `m`."""
    folder = root / "m" / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    parameter = f'parameters {{ key: "release" value {{ string_value: "{release}" }} }}'
    (root / "m" / "config.pbtxt").write_text(f'backend: "python" {NUMBERS} {parameter} {extra}')
    (folder / "neighbour.py").write_text(f"RELEASE = {release}")
    (folder / "model.py").write_text(source(release))


def write_models(root: Path) -> None:
    """Write `m` in its first release, and `twice`, which asks it two times."""
    write_release(root, 1)
    ends = [f"input {tensor('INPUT0', 'INT32', -1)}", f"output {tensor('OUTPUT0', 'INT32', -1)}"]
    first = "m", {"INPUT0": "INPUT0"}, {"OUTPUT0": "middle"}
    write_ensemble(root, "twice", *ends, first, ("m", {"INPUT0": "middle"}, {"OUTPUT0": "OUTPUT0"}))


def release_of(answer: Answer) -> int:
    """Return the release that answered, having seen that it is one and the same in all parts and steps."""
    number, *parts = answer.values
    assert number == answer.number
    assert len(parts) == (2 * PARTS if answer.model == "twice" else PARTS)
    assert len(set(parts)) == 1, f"a mixture: {answer}"
    return parts[0]


_CONTROL = ThreadPoolExecutor(1, "control")


def check_answers(tally: Tally, releases: Sequence[int]) -> None:
    """Hold that no answer is a mixture, that no later answer is from an older release, and nothing is lost."""
    assert tally.lost == []
    for model in ("m", "twice"):
        seen = {release_of(answer) for answer in tally.answers if answer.model == model}
        assert seen == set(releases)


def children(server: ConchProcess) -> list[psutil.Process]:
    return psutil.Process(server.process.pid).children(recursive=True)


async def in_thread(call: Callable[[], object]) -> None:
    """Make a call of Triton's HTTP client always in the same thread: gevent's sockets belong to one."""
    await asyncio.get_running_loop().run_in_executor(_CONTROL, call)


async def test_reload_and_unload_under_load(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_models(root)
    with (
        ConchProcess(root, *EXPLICIT, log=tmp_path / "log") as server,
        triton.InferenceServerClient(server.http) as control,
    ):
        load = Load.of(server, ["m", "twice"], http=3, grpc=2)
        async with load.running() as tally:
            await tally.next_answers("m", "twice")
            family = set(children(server))
            for release in (2, 3, 4):
                write_release(root, release)
                await in_thread(lambda: control.load_model("m"))
                assert {release_of(answer) for answer in await tally.next_answers("m", "twice")} == {release}
                family |= set(children(server))
            # Of the processes of all these, those of the fork server and of the last release are left.
            await until(lambda: sum(child.is_running() for child in family) == 2)
            # A load that fails changes nothing.
            (root / "m" / "1" / "model.py").write_text("raise RuntimeError('boom')")
            with pytest.raises(InferenceServerException, match="boom"):
                await in_thread(lambda: control.load_model("m"))
            (root / "m" / "config.pbtxt").write_text("nonsense: 1")
            with pytest.raises(InferenceServerException, match="nonsense"):
                await in_thread(lambda: control.load_model("m"))
            await tally.until(40)
            assert tally.refusals == []
            # Only the configuration, then another version and back.
            write_release(root, 4, extra="max_batch_size: 0 instance_group { count: 2 }")
            await in_thread(lambda: control.load_model("m"))
            write_release(root, 5, version=2)
            await in_thread(lambda: control.load_model("m"))
            late = await tally.next_answers("m", "twice")
            assert {(answer.model, answer.version) for answer in late} == {("m", "2"), ("twice", "1")}
            shutil.rmtree(root / "m" / "2")
            write_release(root, 6)
            await in_thread(lambda: control.load_model("m"))
            assert {release_of(answer) for answer in await tally.next_answers("m", "twice")} == {6}
            assert tally.refusals == []
            # Gone, and back again.
            await in_thread(lambda: control.unload_model("m"))
            await tally.until_refused(*((model, status) for model in ("m", "twice") for status in (404, "NOT_FOUND")))
            await in_thread(lambda: control.load_model("m"))
            await tally.until(40)
        check_answers(tally, range(1, 7))
        # Unavailable while it is loaded again.
        assert {404, "NOT_FOUND"} <= {refusal.status for refusal in tally.refusals}
        assert {refusal.status for refusal in tally.refusals} <= {404, "NOT_FOUND", 503, "UNAVAILABLE"}
        assert all("'m' has no available versions" in refusal.text for refusal in tally.refusals)
        assert {answer.version for answer in tally.answers} == {"1", "2"}


async def test_a_model_that_is_written_slowly_is_served_when_it_is_complete(tmp_path: Path) -> None:
    root = tmp_path / "models"
    write_models(root)
    flags = ["--model-control-mode=poll", "--repository-poll-secs=1"]
    with ConchProcess(root, *flags, log=tmp_path / "log") as server:
        load = Load.of(server, ["m", "twice"], http=2, grpc=1)
        async with load.running() as tally:
            text = source(2)
            write_release(root, 2)
            half = text.index("TritonPythonModel.TAIL")
            with (root / "m" / "1" / "model.py").open("w", buffering=1) as file:
                file.write(text[:half])
                for _ in range(5):  # beyond two looks
                    await asyncio.sleep(0.5)
                    file.write("# …\n")
                file.write(text[half:])
            await until(lambda: release_of(tally.answers[-1]) == 2)
            assert {release_of(answer) for answer in await tally.next_answers("m", "twice")} == {2}
        check_answers(tally, (1, 2))
        assert tally.refusals == []
        assert "failed" not in server.text


def write_counting(root: Path, book: Path, seconds: float) -> None:
    """Write a model that keeps a book of what it executes, and takes its time over it."""
    body = f"""
    numbers = request.inputs()[0].as_numpy()
    with open({str(book)!r}, "a") as file:
        file.write(str(numbers[0]) + "\\n")
    time.sleep({seconds})
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", numbers)])
    """
    write_python(root, "m", NUMBERS, body)


@contextmanager
def doomed(*flags: str, root: Path, wait: str = "ready") -> Iterator[ConchProcess]:
    """A server that need not end well; the book of its model is beside its repository."""
    server = ConchProcess(root, *flags, log=root.parent / "log", wait=wait)
    server.__enter__()
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


async def test_a_server_that_stops_under_load_answers_all_that_it_has_taken(tmp_path: Path) -> None:
    root, book = tmp_path / "models", tmp_path / "book"
    write_counting(root, book, 0.01)
    with ConchProcess(root, log=tmp_path / "log") as server:
        load = Load.of(server, ["m"], http=6, grpc=4)
        async with load.running() as tally:
            await tally.until(30)
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, 60) == 0
    executed = sorted(map(int, book.read_text().split()))
    assert executed == sorted(answer.number for answer in tally.answers)
    assert not any(lost.begun for lost in tally.lost)
    assert {refusal.status for refusal in tally.refusals} <= {"UNAVAILABLE", 503}


async def test_a_request_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    root, book = tmp_path / "models", tmp_path / "book"
    write_counting(root, book, 600)
    with doomed("--exit-timeout-secs=1", root=root) as server:
        http, grpc = HttpClient(server.http), GrpcClient(server.grpc)
        asked = [asyncio.create_task(client.ask("m", 1)) for client in (http, grpc)]
        await until(book.exists)
        family = children(server)
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, 60) == 1
        assert not any(isinstance(outcome, Answer) for outcome in await asyncio.gather(*asked))
        await grpc.close()
        await http.close()
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


async def test_a_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    root, book = tmp_path / "models", tmp_path / "book"
    write_counting(root, book, 600)
    with doomed(root=root) as server:
        asked = asyncio.create_task(HttpClient(server.http).ask("m", 1))
        await until(book.exists)
        family = children(server)
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: "Waiting for in-flight" in server.text)
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, 60) == -signal.SIGTERM
        assert isinstance(await asked, Lost)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


async def test_a_server_that_stops_while_it_loads_leaves_no_process(tmp_path: Path) -> None:
    root, begun = tmp_path / "models", tmp_path / "begun"
    more = f"""
    def initialize(self, args):
        open({str(begun)!r}, "w").close()
        time.sleep(600)
    """
    write_python(root, "m", NUMBERS, ECHO, more=more)
    with doomed(root=root, wait="live") as server:
        await until(begun.exists)
        family = children(server)
        server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, 60) == 0
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
