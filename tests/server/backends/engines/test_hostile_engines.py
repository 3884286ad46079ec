"""Engine processes that speak the protocol, and then break it: each harms only itself and its requests."""

import asyncio
import logging
import mmap
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conch.base.errors import Cancelled, ModelLoadError, ProcessDied
from conch.domain.generation import EngineLoad, GenerationRequest, SamplingParams, Usage
from conch.server.backends.child.conch_child.ipc import wire
from conch.server.backends.engines.cleanup import EngineCleanup
from conch.server.backends.engines.engine_process import EngineProcess
from conch.server.backends.processes.launch import Exit, Program
from tests.server.backends.engines.driving import Recorded

TIMEOUT_S = 60

# It loads with INFO, and runs ATTACK for each request.
HOSTILE = """
import os, random, socket, sys, time
sys.path.insert(0, FOLDER)
from wire import PREFIX, FrameDecoder, encode_to_server
connection = socket.socket(fileno=int(sys.argv[1]))
decoder = FrameDecoder()
IDLE = (0, 0, 0.0, 0, 0, 0)

def send(*message, payload=b""):
    connection.sendall(encode_to_server(message, [payload], len(payload)))

def header(content):
    return PREFIX.pack(len(content), 0) + content

def step(*events, load=IDLE, times=()):
    send(33, events, load, times)

def delta(index=0, text="x", ids=(1,), finish=None, stop=None, logprobs=(), *more):
    return (index, text, ids, finish, stop, logprobs, *more)

def finished(key):
    step((key, (delta(finish="stop"),), (1, 1, 0)))

while True:
    data = connection.recv(1 << 16)
    if not data:
        break
    for message, payload in decoder.feed(data):
        if message[0] == 1:
            exec(LOADING)
            send(32, "", INFO)
        elif message[0] == 2:
            key = message[1]
            exec(ATTACK)
        elif message[0] == 4:
            sys.exit()
"""
INFO = {"context_length": 100, "max_running": 4, "supported_params": ["n", "max_tokens"]}

# What the log says of the process that was killed, and the attack.
FATAL = {
    "self-referencing tuple": (
        "unreadable header",
        r"connection.sendall(header(b'\xa8\x02\x00\x00\x00i\x22\x00\x00\x00r\x00\x00\x00\x00'))",
    ),
    "random bytes": ("", "connection.sendall(random.Random(1).randbytes(1 << 16))"),
    "a payload": ("too large", "send(33, (), IDLE, payload=b'x')"),
    "many values": ("more than 100000 values", "connection.sendall(header(b'[33' + b',[]' * 200_000 + b']'))"),
    "unknown type": ("unknown type 99", "send(99)"),
    "loaded again": ("LOADED must come once", "send(32, '', {})"),
    "too few fields": ("STEP must be", "send(33)"),
    "events are an object": ("events must be an array", "send(33, {}, IDLE, ())"),
    "times are a number": ("the times of a step must be an array", "step(times=7)"),
    "times are negative": ("a time of a step", "step(times=(0, -1, 0, 0))"),
    "times without end": ("a time of a step", "step(times=(0, 2**63, 0, 0))"),
    "too few times": ("the times of a step must be an array of 4 items", "step(times=(1, 2))"),
    "an event is a number": ("an event must be", "step(5)"),
    "key is a list": ("the key of a request", "step(([], (), None))"),
    "key is a text": ("the key of a request", "step(('1', (), None))"),
    "deltas are a text": ("deltas must be an array", "step((key, 'abc', None))"),
    "delta too short": ("a delta must be", "step((key, ((0, 'x'),), None))"),
    "index out of range": ("the index of a sequence", "step((key, (delta(index=1),), None))"),
    "negative index": ("the index of a sequence", "step((key, (delta(index=-1),), None))"),
    "text is bytes": ("generated text", "step((key, (delta(text=7),), None))"),
    "negative token": ("a token id", "step((key, (delta(ids=(-1,)),), None))"),
    "token of 2^63": ("a token id", "step((key, (delta(ids=(2**63,)),), None))"),
    "tokens are texts": ("a token id", "step((key, (delta(ids=('a',)),), None))"),
    "unknown finish reason": ("unknown reason", "step((key, (delta(finish='bored'),), None))"),
    "finish reason is a list": ("unknown reason", "step((key, (delta(finish=[]),), None))"),
    "stop reason": ("a stop reason", "step((key, (delta(stop=[1]),), None))"),
    "too many tokens": ("more tokens or text", "step((key, (delta(ids=(1,) * 5000),), None))"),
    "too many tokens in steps": ("more tokens or text", "for _ in range(3000): step((key, (delta(),), None))"),
    "too much text": ("more tokens or text", "step((key, (delta(text='x' * 2**23, ids=()),), None))"),
    "empty deltas without end": (
        "more tokens or text",
        "for _ in range(1000): step((key, (delta(text='', ids=()),) * 3000, None))",
    ),
    "more log probabilities than tokens": (
        "log probabilities of 2 tokens for 1",
        "step((key, (delta(logprobs=(((1, 'a', -1.0),),) * 2),), None))",
    ),
    "many alternatives": (
        "log probabilities of 1000 alternatives",
        "step((key, (delta(logprobs=(((1, 'a', -1.0),) * 1000,)),), None))",
    ),
    "log probability is a text": ("a log probability", "step((key, (delta(logprobs=(((1, 'a', 'b'),),)),), None))"),
    "short log probability": ("a log probability", "step((key, (delta(logprobs=(((1,),),)),), None))"),
    "a prompt": ("does not ask for", "step((key, (delta(0, 'x', (1,), None, None, (), ((1,), '', (), ())),), None))"),
    "a size of a prompt": (
        "number of tokens",
        "step((key, (delta(0, 'x', (1,), None, None, (), (-1, '', (), ())),), None))",
    ),
    "end is a number": ("the end of a request", "step((key, (), 5))"),
    "end with negative tokens": ("a number of tokens", "step((key, (), (1, -1, 0)))"),
    "end with 2^40 tokens": ("a number of tokens", "step((key, (), (1, 2**40, 0)))"),
    "error code": ("the code of an error", "step((key, (), ('x', 'text')))"),
    "error text": ("the text of an error", "step((key, (), (1, 5)))"),
    "load too short": ("the load of an engine", "step(load=(1, 2))"),
    "negative load": ("a load must be", "step(load=(-1, 0, 0.0, 0, 0, 0))"),
    "load of 2^60": ("a load must be", "step(load=(0, 0, 0.0, 2**60, 0, 0))"),
    "usage is NaN": ("must be finite", "step(load=(0, 0, float('nan'), 0, 0, 0))"),
    "usage is infinite": ("must be finite", "step(load=(0, 0, float('inf'), 0, 0, 0))"),
    "usage is a text": ("must be a number", "step(load=(0, 0, 'full', 0, 0, 0))"),
    "log level": ("a level of the log", "send(34, 99, 'text')"),
    "log of a list": ("a line of the log", "send(34, 20, [1])"),
}


@asynccontextmanager
async def hostile(
    attack: str = "finished(key)", info: object = INFO, loading: str = ""
) -> AsyncIterator[tuple[EngineProcess, EngineLoad]]:
    load = EngineLoad()
    deaths: list[Exit] = []
    process = EngineProcess("hostile", load, deaths.append)
    code = HOSTILE.replace("FOLDER", repr(str(Path(wire.__file__).parent))).replace("ATTACK", repr(attack))
    code = code.replace("INFO", repr(info)).replace("LOADING", repr(loading))
    try:
        await process.start(Program([sys.executable, "-c", code], {}), "scripted", {}, TIMEOUT_S)
        yield process, load
    finally:
        await process.kill()


def begin(process: EngineProcess, **params: int) -> Recorded:
    got = Recorded()
    request = GenerationRequest(id="1", model_name="m", prompt="a", params=SamplingParams(**params))
    got.generation = process.generate(request, got.on_deltas)
    return got


async def ended(got: Recorded) -> object:
    await asyncio.wait_for(got.ended.wait(), TIMEOUT_S)
    return got.end


@pytest.mark.parametrize("name", FATAL)
async def test_a_malformed_message_ends_only_its_process(name: str, caplog: pytest.LogCaptureFixture) -> None:
    reason, attack = FATAL[name]
    async with hostile(attack) as (process, load):
        end = await ended(begin(process))
        assert await process._child.wait(TIMEOUT_S)
        assert (load.running, load.waiting, load.kv_cache_usage) == (0, 0, 0)
    assert isinstance(end, ProcessDied), end
    assert "was killed by SIGKILL while this request was being generated" in end.message
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert said.startswith("killed: malformed IPC message: ")
    assert reason in said
    assert len(said) < 300


HARMLESS = {
    "unknown key": "step((key + 10**6, (delta(index=99),), (1, 1, 0)))",
    "ended twice": "finished(key)",
    "load above 1": "step(load=(1, 1, 7.5, 0, 0, 0))",
    "long log": "send(34, 20, 'x' * 2**22)",
    "nested surrogates": "step((key, (delta(text='\\ud800'),), None))",
}


@pytest.mark.parametrize("name", HARMLESS)
async def test_what_does_no_harm_is_ignored(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with hostile(f"{HARMLESS[name]}\nfinished(key)") as (process, load):
        for _ in range(3):
            assert await ended(begin(process)) == Usage(1, 1, 0)
        assert 0 <= load.kv_cache_usage <= 1
        assert process.alive
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({}, "no context_length"),
        ({**INFO, "context_length": 0}, "'context_length' of the engine"),
        ({**INFO, "context_length": 2**40}, "'context_length' of the engine"),
        ({**INFO, "max_running": "many"}, "'max_running' of the engine"),
        ({**INFO, "kv_cache_bytes": -1}, "'kv_cache_bytes' of the engine"),
        ({**INFO, "gpu_memory_share": "nan"}, "'gpu_memory_share' of the engine"),
        ({**INFO, "chat_template": ["{{ 1 }}"]}, "'chat_template' of the engine"),
        ({**INFO, "special_tokens": {"bos_token": 7}}, "the value of a label"),
        ({**INFO, "adapters": "abc"}, "'adapters' of the engine"),
        ({**INFO, "supported_params": [[]]}, "'supported_params' of the engine"),
        ({**INFO, "__class__": 1}, "'__class__' of the engine is not known"),
    ],
)
async def test_properties_that_are_not_valid_fail_the_load(info: object, reason: str) -> None:
    with pytest.raises(ModelLoadError, match="engine 'hostile' sent a malformed IPC message: ") as failure:
        async with hostile(info=info):
            pass
    assert reason in failure.value.message


async def test_parameters_that_do_not_exist_are_not_supported() -> None:
    async with hostile(info={**INFO, "supported_params": ["n", "check", "__class__"]}) as (process, _):
        assert process.alive


async def test_sequences_of_one_request_have_their_tokens() -> None:
    async with hostile("step((key, [delta(index, ids=(1,) * 100) for index in range(3)], (1, 300, 0)))") as (
        process,
        _,
    ):
        assert await ended(begin(process, n=3)) == Usage(1, 300, 0)


@pytest.fixture
def segments() -> Iterator[tuple[Path, Path]]:
    """A file of another program in /dev/shm, and the name of one to create."""
    foreign, own = (Path(f"/dev/shm/conch-test-{owner}-{os.getpid()}") for owner in ("foreign", "own"))
    foreign.write_bytes(bytes(mmap.PAGESIZE))
    yield foreign, own
    foreign.unlink(missing_ok=True)
    own.unlink(missing_ok=True)


def existing(paths: Sequence[Path]) -> list[str]:
    return [str(path) for path in paths if path.exists()]


async def test_an_engine_cannot_have_files_of_others_removed(segments: tuple[Path, Path]) -> None:
    """What it maps but has not created stays; what it has created goes with it."""
    foreign, own = map(str, segments)
    loading = (
        "import mmap\n"
        f"maps = [mmap.mmap(os.open({foreign!r}, os.O_RDWR), 4096)]\n"
        f"fd = os.open({own!r}, os.O_RDWR | os.O_CREAT)\n"
        "os.ftruncate(fd, 4096)\n"
        "maps.append(mmap.mmap(fd, 4096))"
    )
    async with hostile(loading=loading) as (process, _):
        assert existing(segments) == [foreign, own]
        process._child.kill()
        assert await process._child.wait(TIMEOUT_S)
    assert existing(segments) == [foreign]


def test_a_name_that_belongs_to_another_file_by_now_stays() -> None:
    path = Path(f"/dev/shm/conch-test-name-{os.getpid()}")
    cleanup = EngineCleanup()
    path.write_bytes(bytes(mmap.PAGESIZE))
    try:
        with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
            cleanup.find_shared_memory(os.getpid())
        path.rename(path.with_name(f"{path.name}-kept"))
        path.write_bytes(b"another")
        cleanup.remove()
        assert path.exists()
    finally:
        path.unlink()
        path.with_name(f"{path.name}-kept").unlink(missing_ok=True)


async def test_an_aborted_request_gets_nothing_more() -> None:
    async with hostile("for _ in range(100): step((key, (delta(),), None))") as (process, _):
        got = begin(process)
        await asyncio.wait_for(got.begun.wait(), TIMEOUT_S)
        assert got.generation is not None
        got.generation.abort()
        assert isinstance(await ended(got), Cancelled)
        count = len(got.deltas)
        await asyncio.sleep(0.1)
        assert len(got.deltas) == count
        assert process.alive


MUTATION = """
random.seed(SEED)
frames = [
    encode_to_server((33, [(key, [delta()], None)], IDLE)),
    encode_to_server((33, [(key, [delta(logprobs=(((1, "a", -0.5, 1),),))], None)], (1, 2, 0.5, 3, 4, 5))),
    encode_to_server((33, [(key, [], (1, "error"))], IDLE)),
    encode_to_server((34, 20, "text")),
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
    connection.sendall(bytes(stream))
except OSError:
    pass
time.sleep(0.01)
os._exit(1)
"""


@pytest.mark.parametrize("seed", range(25))
async def test_mutated_frames(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    async with hostile(MUTATION.replace("SEED", str(seed))) as (process, _):
        assert await ended(begin(process)) is not None
        assert await process._child.wait(TIMEOUT_S)
    for record in caplog.records:
        assert "error while handling" not in record.getMessage(), record.block
