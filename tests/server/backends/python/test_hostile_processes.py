"""Processes of Python models that speak the protocol, and then break it: each harms only itself and its requests."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from conch.base.errors import ConchError, ProcessDied
from conch.domain.exposition import render
from conch.domain.request import InferRequest, InferResponse
from conch.domain.tensor import Tensor
from conch.server.backends.batch import Batch
from conch.server.backends.child.conch_child.ipc import wire
from conch.server.backends.child.conch_child.ipc.wire import WireError
from conch.server.backends.processes.launch import Exit, Program
from conch.server.backends.python.custom_metrics import InstanceMetrics
from conch.server.backends.python.model_process import ModelProcess
from conch.server.backends.python.settings import PythonSettings
from conch.server.backends.python.tensor_exchange import TensorExchange
from conch.server.observability.metrics.custom import CustomMetrics
from tests.server.backends.python.running import TIMEOUT_S, Caller, plan, source, write_model

# It gets the descriptors of a process of a model, and runs ATTACK for each batch. `answer` answers its first request.
HOSTILE = """
import array, fcntl, json, mmap, os, random, socket, struct, sys, time
sys.path.insert(0, FOLDER)
from wire import PREFIX, FrameDecoder, encode_to_server
control, inputs, outputs = map(int, sys.argv[1:4])
connection = socket.socket(fileno=control)
decoder = FrameDecoder()

def raw(data):
    connection.sendall(data)

def header(content):
    return PREFIX.pack(len(content), 0) + content

def send(*message, payload=b""):
    raw(encode_to_server(message, [payload], len(payload)))

def tensor(name="OUT", datatype="UINT8", shape=(4,), place=-1, size=4):
    return (name, datatype, shape, place, size)

def executed(*answers, released=(), times=(0, 0), payload=bytes(8)):
    send(34, released, answers, *times, (0, 0, 0), payload=payload)

def answer(key, *outputs, **options):
    executed((key, True, None, outputs or (tensor(),), None), **options)

while True:
    data = connection.recv(1 << 16)
    if not data:
        break
    for message, payload in decoder.feed(data):
        if message[0] == 1:
            send(32, "", False)
        elif message[0] == 3:
            key = message[2][0][0]
            exec(ATTACK)
        elif message[0] == 9:
            sys.exit()
"""

# What the log says of the process that was killed, and the attack.
FATAL = {
    # The codec.
    "self-referencing tuple": (
        "unreadable header",
        r"raw(header(b'\xa8\x02\x00\x00\x00i\x22\x00\x00\x00r\x00\x00\x00\x00'))",
    ),
    "200 million items": ("unreadable header", r"raw(header(b'(' + struct.pack('<I', 200_000_000) + b'N' * 20))"),
    "marshal": ("unreadable header", "import marshal; raw(header(marshal.dumps((34, (), (), 0, 0), 2)))"),
    "deep": ("unreadable header", "raw(header(b'[' * 90_000))"),
    "many values": ("more than 100000 values", "raw(header(b'[34' + b',0' * 4_000_000 + b']'))"),
    "huge header": ("too large", "raw(PREFIX.pack(2**32 - 1, 0))"),
    "huge payload": ("too large", "raw(PREFIX.pack(2, 2**63) + b'[]')"),
    "no header": ("unreadable header", "raw(PREFIX.pack(0, 0))"),
    "random bytes": ("", "raw(random.Random(1).randbytes(1 << 16))"),
    "not an array": ("must be an array that begins with a type", "raw(header(b'{}'))"),
    # Messages.
    "unknown type": ("unknown type 99", "send(99)"),
    "type of another kind": ("unknown type 'x'", "send('x')"),
    "too few fields": ("EXECUTED must be an array of 6 items", "send(34, ())"),
    "too many fields": ("EXECUTED must be an array of 6 items", "send(34, (), (), 0, 0, (0, 0, 0), 0)"),
    "reply to no request": ("a reply to no request", "send(32, '', False)"),
    "another reply": ("a reply to no request", "send(33, '', '{}')"),
    "no batch": ("no batch is being executed", "answer(key); executed()"),
    "negative use": ("the use of processors", "send(34, (), (), 0, 0, (0, -1, 0))"),
    "use without end": ("the use of processors", "send(34, (), (), 0, 0, (2**63, 0, 0))"),
    "use not a list": ("the use of processors must be an array of 3 items", "send(34, (), (), 0, 0, 7)"),
    "times reversed": ("the time when execute ended", "answer(key, times=(9, 3))"),
    "negative time": ("the time when inputs were ready", "answer(key, times=(-1, 3))"),
    "time of 2^63": ("the time when inputs were ready", "answer(key, times=(2**63, 2**63))"),
    "time not a number": ("the time when inputs were ready", "answer(key, times=('a', 'b'))"),
    "answered without times": ("ANSWERED must be an array of 5 items", "send(35, (), ())"),
    "answered at reversed times": ("the time when answers were sent", "send(35, (), (), 9, 3)"),
    "answered at a time of 2^63": ("the time when inputs were ready", "send(35, (), (), 2**63, 2**63)"),
    "released unknown": ("no block of shared memory begins at offset 64", "answer(key, released=(64,))"),
    "released negative": ("a released offset", "answer(key, released=(-64,))"),
    "released object": ("a released offset must be an array", "answer(key, released={'a': 1})"),
    "answers not a list": ("answers must be an array", "send(34, (), 'abcde', 0, 0, (0, 0, 0))"),
    "answer too short": ("an answer must be an array of 5 items", "executed((key, True))"),
    "key not a number": ("the key of an answer", "executed(([], True, None, None, None))"),
    "key is a boolean": ("the key of an answer", "executed((True, True, None, None, None))"),
    "final is a number": ("whether an answer is the last", "executed((key, 1, None, (), None))"),
    "not final": ("answers each request with one response", "executed((key, False, None, (), None))"),
    "no response": ("answers each request with one response", "executed((key, True, None, None, None))"),
    "error is a text": ("an error must be an array of 2 items", "executed((key, True, 'failed', None, None))"),
    "error without code": ("the code of an error", "executed((key, True, ([], 'failed'), None, None))"),
    "error text is a number": ("the text of an error", "executed((key, True, (1, 7), None, None))"),
    "parameters are a list": ("parameters must be an object", "executed((key, True, None, (), [1]))"),
    "nested parameter": ("must be a boolean, a number or a text", "executed((key, True, None, (), {'a': [1]}))"),
    "parameter of 2^63": ("parameter 'a' must be an integer", "executed((key, True, None, (), {'a': 2**63}))"),
    # Tensors.
    "outputs are a text": ("tensors must be an array", "executed((key, True, None, 'abc', None))"),
    "output too short": ("a tensor must be an array of 5 items", "answer(key, ('OUT', 'UINT8'))"),
    "name is a number": ("the name of a tensor", "answer(key, tensor(name=7))"),
    "name of 1 MB": ("the name of a tensor", "answer(key, tensor(name='x' * 2**20))"),
    "unknown datatype": ("cannot be UINT7", "answer(key, tensor(datatype='UINT7'))"),
    "datatype is a list": ("has the datatype an array", "answer(key, tensor(datatype=[]))"),
    "negative dimension": ("has a dimension -4", "answer(key, tensor(shape=(-4,)))"),
    "negative dimensions": ("has a dimension -2", "answer(key, tensor(shape=(-2, -2)))"),
    "fraction of a dimension": ("has a dimension 4.0", "answer(key, tensor(shape=(4.0,)))"),
    "dimension of 2^63": ("in 4 bytes", "answer(key, tensor(shape=(2**63, 2)))"),
    "product wraps to 4": ("in 4 bytes", "answer(key, tensor(shape=(2**62 + 1, 4)))"),
    "product wraps to 0": ("in 0 bytes", "answer(key, tensor(shape=(2**63, 2), size=0))"),
    "100,000 dimensions": ("must be an array of at most 64 sizes", "answer(key, tensor(shape=(2,) * 90_000))"),
    "shape too large": ("in 4 bytes", "answer(key, tensor(shape=(5,)))"),
    "shape too small": ("in 4 bytes", "answer(key, tensor(shape=(3,)))"),
    "wrong size of items": ("in 4 bytes", "answer(key, tensor(datatype='FP32', shape=(4,)))"),
    "BYTES without room": ("in 4 bytes", "answer(key, tensor(datatype='BYTES', shape=(2,)))"),
    "negative size": ("in -4 bytes", "answer(key, tensor(size=-4))"),
    "size is a text": ("the size '4'", "answer(key, tensor(size='4'))"),
    "outside of the payload": ("ends outside of its message", "answer(key, tensor(place=~5))"),
    "far outside of the payload": ("ends outside of its message", "answer(key, tensor(place=~(2**38 - 1)))"),
    "outside of everything": ("the place of a tensor", "answer(key, tensor(place=-2**63))"),
    "outside of the arena": ("invalid block of shared memory", "answer(key, tensor(place=2**30 - 2))"),
    "far outside of the arena": ("invalid block of shared memory", "answer(key, tensor(place=2**52 - 1))"),
    "outside of the other arena": ("invalid block of shared memory", "answer(key, tensor(place=2**52 + 2**30 - 2))"),
    "far outside of the other arena": ("invalid block of shared memory", "answer(key, tensor(place=2**53))"),
    "place is a text": ("the place of a tensor", "answer(key, tensor(place='0'))"),
    "a block twice": ("invalid block", "answer(key, tensor(place=0), tensor(name='B', place=0))"),
    "empty block": ("invalid block", "answer(key, tensor(place=64, shape=(0,), size=0))"),
    "no such destination": (
        "the client has no shared memory|ends",
        "answer(key, tensor(place=None), tensor(place=~5))",
    ),
    # Other messages.
    "log of no level": ("a level of the log", "send(37, 99, 'file', 1, 'text')"),
    "log of a list": ("a line of the log", "send(37, 20, 'file', 1, ['text'])"),
    "log from a long file": ("a file must be", "send(37, 20, 'x' * 10_000, 1, 'text')"),
    "readiness": ("whether the model is ready", "send(36, 'yes')"),
    "born again": ("unknown type 39", "send(39, 1, '')"),
    "a call without BLS": ("unknown type 40", "send(40)"),
}

# The process answers, and nothing else happens.
HARMLESS = {
    "unknown key": "executed((key, True, None, (tensor(),), None), (10**18, True, None, (tensor(),), None))",
    "answered twice": "executed(*[(key, True, None, (tensor(),), None)] * 2)",
    "answered again": "answer(key); send(35, (), [(key, True, None, (tensor(),), None)], 0, 0, payload=bytes(8))",
    "answered in the future": "send(35, (), (), 2**62, 2**63 - 1); answer(key)",
    "answered byte by byte": (
        "frame = encode_to_server((34, (), [(key, True, None, (tensor(),), None)], 0, 0, (0, 0, 0)), [bytes(8)], 8)\n"
        "for at in range(len(frame)): raw(frame[at:at + 1])"
    ),
    "times of the future": "answer(key, times=(2**62, 2**63 - 1))",
    "logs without end": "send(37, 20, 'x', 1, 'y' * 2**22); answer(key)",
    "logs 20,000 lines": "for at in range(20_000): send(37, 20, 'x', 1, 'y')\nanswer(key)",
    "truncates the arenas": (
        "for fd in (inputs, outputs):\n"
        "    try: os.ftruncate(fd, 0)\n"
        "    except PermissionError: pass\n"
        "mmap.mmap(outputs, 4)[:] = b'abcd'\n"
        "answer(key, tensor(place=0))"
    ),
    "grows the arenas": (
        "for fd in (inputs, outputs):\n"
        "    try: os.ftruncate(fd, 1 << 40)\n"
        "    except PermissionError: pass\n"
        "answer(key)"
    ),
    "unseals the arenas": (
        "for fd in (inputs, outputs):\n"
        "    try: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)\n"
        "    except PermissionError: pass\n"
        "answer(key)"
    ),
    "sends descriptors": (
        "fds = [os.memfd_create('x') for _ in range(50)] + [0, 1, 2, control]\n"
        "rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))\n"
        "frame = encode_to_server((34, (), [(key, True, None, (tensor(),), None)], 0, 0, (0, 0, 0)), [bytes(8)], 8)\n"
        "connection.sendmsg([frame], [rights])"
    ),
}


@asynccontextmanager
async def hostile(folder: Path, attack: str, decoupled: bool = False) -> AsyncIterator[ModelProcess]:
    """Run a process that attacks, for the instance of a model."""
    write_model(folder, "")
    model = source(folder, outputs=["OUT"], decoupled=decoupled)
    deaths: list[Exit] = []
    settings = PythonSettings(stub_timeout_s=TIMEOUT_S)
    process = ModelProcess("hostile_0", model, settings, InstanceMetrics(), deaths.append)
    code = HOSTILE.replace("FOLDER", repr(str(Path(wire.__file__).parent))).replace("ATTACK", repr(attack))
    await process.start(Program([sys.executable, "-c", code], {}))
    try:
        await process.initialize(plan(model))
        yield process
    finally:
        await process.kill()


def execute(process: ModelProcess, size: int = 4) -> tuple[Caller, asyncio.Event]:
    """Send one request. Return its caller, and an event for the release of its batch."""
    released = asyncio.Event()
    caller = Caller(InferRequest("model", [Tensor("IN", "UINT8", (size,), bytes(size))]))
    process.execute(Batch([caller], lambda _: released.set()))
    return caller, released


async def settled(process: ModelProcess, released: asyncio.Event) -> None:
    """Wait until the process has died and its batch is released."""
    await asyncio.wait_for(released.wait(), TIMEOUT_S)
    assert await process._child.wait(TIMEOUT_S)
    assert not len(process.requests)


@pytest.mark.parametrize("name", FATAL)
async def test_a_malformed_message_ends_only_its_process(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reason, attack = FATAL[name]
    async with hostile(tmp_path, attack) as process:
        caller, released = execute(process)
        answer = await caller.finished()
        await settled(process, released)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1, said
    assert said[0].startswith("killed: malformed IPC message: ")
    assert any(part in said[0] for part in reason.split("|")), said[0]
    assert len(said[0]) < 300
    if "answer(key);" not in attack:
        assert isinstance(answer, ProcessDied)
        assert "was killed by SIGKILL while this request was being executed" in answer.message


@pytest.mark.parametrize("name", HARMLESS)
async def test_what_does_no_harm_is_ignored(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = psutil.Process()
    async with hostile(tmp_path, HARMLESS[name]) as process:
        held = own.num_fds()
        for _ in range(3):
            caller, released = execute(process)
            response = await caller.response()
            assert response.outputs[0].shape == (4,)
            assert bytes(response.outputs[0].data) in (bytes(4), b"abcd")
            assert caller.request.timeline.done == 0
            await asyncio.wait_for(released.wait(), TIMEOUT_S)
            del response, caller
            await asyncio.sleep(0.02)
        assert own.num_fds() == held
        assert process.alive
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_large_tensor_after_a_truncation_is_read(tmp_path: Path) -> None:
    """Without the seals, the server dies of SIGBUS."""
    attack = (
        "try: os.ftruncate(outputs, 0)\n"
        "except PermissionError: pass\n"
        "answer(key, tensor(place=0, shape=(1 << 22,), size=1 << 22))"
    )
    async with hostile(tmp_path, attack) as process:
        caller, _ = execute(process, 1 << 22)
        response = await caller.response()
        assert bytes(response.outputs[0].data) == bytes(1 << 22)


async def test_releasing_what_was_not_sent_harms_only_the_process(tmp_path: Path) -> None:
    """The server fills the blocks of the second batch while the process releases them."""
    attack = "executed((key, True, None, (tensor(),), None), released=(0, 1 << 26))"
    async with hostile(tmp_path, attack) as process:
        first, released = execute(process, 1 << 26)
        second, _ = execute(process, 1 << 26)
        assert isinstance(await first.finished(), InferResponse | ConchError)
        await asyncio.wait_for(released.wait(), TIMEOUT_S)
        process._child.kill()
        assert isinstance(await second.finished(), InferResponse | ConchError)


class Gone:
    """Shared memory of a client that is not there any more."""

    size = 4

    def read(self) -> bytes:
        raise ConchError("gone")

    def room(self) -> npt.NDArray[np.uint8]:
        return np.empty(self.size, np.uint8)

    def read_into(self, target: npt.NDArray[np.uint8], offset: int = 0) -> None:
        raise ConchError("gone")


@pytest.fixture
def exchange() -> Iterator[TensorExchange]:
    exchange = TensorExchange("hostile", 1 << 20, lambda: None)
    yield exchange
    exchange.close_descriptors()


CLAIMS: dict[str, Callable[[TensorExchange, int], object]] = {
    "reads another": lambda exchange, kept: exchange.data("IN", kept + 1, 4, memoryview(b"")),
    "reads more": lambda exchange, kept: exchange.data("IN", kept, 5, memoryview(b"")),
    "reads a released one": lambda exchange, kept: (
        exchange.release([kept]),
        exchange.data("IN", kept, 4, memoryview(b"")),
    ),
    "fetches another": lambda exchange, kept: exchange.fetch(kept + 1),
    "fetches twice": lambda exchange, kept: (exchange.fetch(kept), exchange.fetch(kept)),
    "fetches a released one": lambda exchange, kept: (exchange.release([kept]), exchange.fetch(kept)),
    "releases another": lambda exchange, kept: exchange.release([kept + 1]),
    "releases twice": lambda exchange, kept: exchange.release([kept, kept]),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_process_uses_only_what_is_kept_for_it(name: str, exchange: TensorExchange) -> None:
    kept = exchange.keep(b"kept", ("model", "OUT"))
    assert kept is not None
    assert bytes(exchange.data("IN", kept, 4, memoryview(b""))) == b"kept"
    with pytest.raises(WireError):
        CLAIMS[name](exchange, kept)


def test_what_is_kept_for_a_process_is_bounded(exchange: TensorExchange) -> None:
    quarter = memoryview(bytearray(1 << 26))
    places = [exchange.keep(quarter, ("model", "OUT")) for _ in range(5)]
    assert places[3] is not None
    assert places[4] is None
    exchange.release([places[0]])
    assert exchange.keep(quarter, ("model", "OUT")) not in (None, *places)


def test_a_room_is_released_only_after_it_was_sent(exchange: TensorExchange) -> None:
    room = exchange.room(1 << 20)
    assert room is not None
    assert exchange.room(1) is None
    tensor = Tensor("IN", "UINT8", (1 << 20,), room.data)
    with pytest.raises(WireError, match="was not sent"):
        exchange.release([0])
    with pytest.raises(ConchError, match="gone"):
        exchange.place([tensor, Tensor("GONE", "UINT8", (4,), source=Gone())], exchange.parcel())
    with pytest.raises(WireError, match="was not sent"):
        exchange.release([0])
    for _ in range(2):
        assert exchange.place([tensor], exchange.parcel()) == [("IN", "UINT8", (1 << 20,), 0, 1 << 20)]
    exchange.release([0])
    del tensor, room
    exchange.sweep()
    assert exchange.inputs.used == 1 << 20  # the process may still read it
    exchange.release([0])
    exchange.sweep()
    assert exchange.inputs.used == 0
    with pytest.raises(WireError):
        exchange.release([0])


async def test_a_flood_of_messages_leaves_time_for_others(tmp_path: Path) -> None:
    """Half a million messages; the loop of the server meanwhile comes around."""
    attack = (
        "flood = b''.join(encode_to_server((36, True)) for _ in range(50_000))\n"
        "for _ in range(10): raw(flood)\n"
        "answer(key)"
    )
    async with hostile(tmp_path, attack) as process:
        caller, _ = execute(process)
        turns = 0
        while caller.last is None:
            await asyncio.sleep(0)
            turns += 1
        assert isinstance(caller.last, InferResponse)
        assert turns > 100


async def test_memory_is_flat_after_hundreds_of_malformed_processes(tmp_path: Path) -> None:
    """Each claims sizes, sends half a frame with 8 MB, and dies."""
    own = psutil.Process()
    attack = "raw(PREFIX.pack(2, 1 << 30) + b'[1' + bytes(1 << 23)); os._exit(1)"

    async def once() -> None:
        async with hostile(tmp_path, attack) as process:
            caller, released = execute(process)
            await caller.error()
            await settled(process, released)

    for _ in range(3):
        await once()
    held, resident = own.num_fds(), own.memory_info().rss
    for _ in range(20):
        await once()
    assert own.num_fds() == held
    assert own.memory_info().rss < resident + (48 << 20)


RECORDS = """
area = mmap.mmap(outputs, 0)
base = len(area) - (1 << 22)

def words(position, *values):
    for value in values:
        raw_value = value if isinstance(value, bytes) else struct.pack("<Q", value)
        area[base + 8 * position : base + 8 * position + len(raw_value)] = raw_value
        position += len(raw_value) // 8

def record(position, definition, size=64, serial=1, time=1, value=2.5, length=None, counts=()):
    text = json.dumps(definition).encode() if not isinstance(definition, bytes) else definition
    length = len(text) if length is None else length
    words(position, size, serial, time, struct.pack("<d", value), length, len(counts), *counts)
    start = base + 8 * (position + 6 + len(counts))
    area[start : start + len(text)] = text

GAUGE = ["good", "help", "gauge", {"a": "b"}, []]
words(0, 8 + 64)
record(8, GAUGE)
ATTACK
answer(key)
"""

# What the page shows after it, and the attack.
METRICS = {
    "valid": (2.5, ""),
    "changed": (3.5, "area[base + 8 * 11 : base + 8 * 12] = struct.pack('<d', 3.5)"),
    "end beyond the area": (2.5, "words(0, 2**63)"),
    "no end": (None, "words(0, 0)"),
    "end within a record": (None, "words(0, 20)"),
    "size 0": (None, "words(8, 0)"),
    "size of 2^63": (None, "words(8, 2**63)"),
    "free": (None, "words(9, 0)"),
    "no JSON": (None, "record(8, b'[1, ')"),
    "deep JSON": (None, "record(8, b'[' * 400)"),
    "definition of 2^63 bytes": (None, "record(8, GAUGE, length=2**63)"),
    "definition without end": (None, "record(8, GAUGE, length=10**6)"),
    "too few fields": (None, "record(8, GAUGE[:3])"),
    "unknown kind": (None, "record(8, ['good', '', 'summary', {}, []])"),
    "labels are a list": (None, "record(8, ['good', '', 'gauge', [1], []])"),
    "labels are numbers": (None, "record(8, ['good', '', 'gauge', {'a': 1}, []])"),
    "name is a number": (None, "record(8, [7, '', 'gauge', {}, []])"),
    "bounds are texts": (None, "record(8, ['good', '', 'histogram', {}, ['x']], counts=(1, 2))"),
    "fewer counts than bounds": (None, "record(8, ['good', '', 'histogram', {}, [1, 2]], counts=(1,))"),
    "counts of 2^63": (None, "record(8, GAUGE); words(13, 2**63)"),
    "time of the future": (2.5, "record(8, GAUGE, time=2**64 - 1)"),
    "not a number": (float("nan"), "record(8, GAUGE, value=float('nan'))"),
    "infinite": (float("inf"), "record(8, GAUGE, value=float('inf'))"),
    "hundred thousand records": (
        2.5,
        "words(0, 1 << 19)\nfor at in range(72, (1 << 19) - 6, 6): words(at, 6, 1)",
    ),
}


@pytest.mark.parametrize("name", METRICS)
async def test_records_of_metrics_that_are_not_valid_are_omitted(name: str, tmp_path: Path) -> None:
    expected, attack = METRICS[name]
    async with hostile(tmp_path, RECORDS.replace("ATTACK", attack)) as process:
        for _ in range(2):  # also with what the server keeps of the first read
            caller, _ = execute(process)
            await caller.response()
            families = CustomMetrics(()).families([sample for _, sample in process.requests._metrics.timed_samples()])[
                :-1
            ]
            text = render(families).decode()
            shown = [float(line.split()[1]) for line in text.splitlines() if line.startswith("good{")]
            assert [repr(value) for value in shown] == ([] if expected is None else [repr(float(expected))]), text
        assert process.alive


async def test_metrics_that_change_while_they_are_read(tmp_path: Path) -> None:
    attack = """
deadline = time.monotonic() + 1
while time.monotonic() < deadline:
    record(8, random.choice([GAUGE, ["good", "", "histogram", {}, [1, 2]]]), size=random.choice([0, 6, 64, 2**40]),
        serial=random.randrange(4), counts=random.choice([(), (1, 2, 3)]), length=random.choice([None, 0, 2**40]))
    words(0, random.choice([0, 8, 10, 72, 2**50]))
"""
    async with hostile(tmp_path, RECORDS.replace("ATTACK", attack)) as process:
        caller, _ = execute(process)
        reads = 0
        while caller.last is None:
            render(CustomMetrics(()).families([sample for _, sample in process.requests._metrics.timed_samples()]))
            reads += 1
            await asyncio.sleep(0)
        assert reads > 10


MUTATION = """
random.seed(SEED + key)
frames = [
    encode_to_server((34, (), [(key, True, None, (tensor(),), {"a": 1})], 5, 9), [bytes(8)], 8),
    encode_to_server((35, (0, 64), [(key, True, (1, "error"), None, None)])),
    encode_to_server((37, 20, "file", 1, "text")),
    encode_to_server((36, True)),
]
stream = bytearray(b"".join(random.choice(frames) for _ in range(20)))
for _ in range(random.randint(1, 6)):
    at = random.randrange(len(stream))
    kind = random.random()
    if kind < 0.4:
        stream[at] = random.randrange(256)
    elif kind < 0.6:
        del stream[at : at + random.randint(1, 8)]
    elif kind < 0.8:
        stream[at:at] = random.choice([b"9" * 30, b"-1", b"[[", b"1e999", b'"', b"null", bytes(4), b"\\xff"])
    else:
        stream[at:at] = stream[random.randrange(len(stream)):][:random.randint(1, 100)]
try:
    raw(bytes(stream))
except OSError:
    pass
time.sleep(0.01)
os._exit(1)
"""


@pytest.mark.parametrize("seed", range(40))
async def test_mutated_frames(seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hostile(tmp_path, MUTATION.replace("SEED", str(seed))) as process:
        caller, released = execute(process)
        assert isinstance(await caller.finished(), InferResponse | ConchError)
        await settled(process, released)
    for record in caplog.records:
        assert "error while handling" not in record.getMessage(), record.block
    assert os.getpid()
