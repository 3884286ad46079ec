"""Prompts that never repeat, over processes forked from one source."""

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain, pairwise

import pytest

from conch.measure.bench.generator import ClosedLoop, PreparedRequest
from conch.measure.bench.inputs.prompts import PromptWriter, UniqueWords
from conch.measure.bench.inputs.vocabulary import TokenCounter, Vocabulary, assumed_vocabulary
from tests.measure.bench.load.running import plan, run
from tests.measure.bench.load.servers import ANSWER, HEAD, read_request, serving

WORDS = ("above", "cause", "doors", "earth", "field", "a", "longer")


class CountsBytes(TokenCounter):
    source = "bytes"

    def count(self, text: str) -> int:
        return len(text.encode())


def exact(words: Sequence[str] = WORDS) -> Vocabulary:
    return Vocabulary(tuple(words), ("about",), 3, 1.0, exact=True)


FORKS = """
import json, os
from conch.measure.bench.inputs.prompts import SharedCounter

def take(number):
    os.write(1, json.dumps([counter.next() for _ in range(number)]).encode() + b"\\n")  # one system call a line

counter = SharedCounter()
take(3)
children = []
for _ in range(3):
    children.append(os.fork())
    if children[-1] == 0:
        take(300)
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
take(300)
"""


def test_numbers_are_unique_over_processes() -> None:
    run = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    taken = [json.loads(line) for line in run.stdout.splitlines()]
    assert sorted(len(prompt) for prompt in taken) == [3, 300, 300, 300, 300]
    assert len(set(chain.from_iterable(taken))) == 3 + 900 + 300


def test_spellings_have_one_length_and_differ_in_the_first_word() -> None:
    words = UniqueWords(WORDS)
    assert words.words == WORDS[:5]
    assert words.size == 18
    body = b'{"prompt": "about %s after", "n": 1}' % words.mark(words.size).encode()
    next_body = words.next_body(body)
    assert next_body is not None
    bodies = [next_body() for _ in range(20)]
    assert len(set(bodies)) == 20
    assert {len(body) for body in bodies} == {len(body)}
    prompts = [json.loads(body)["prompt"].split() for body in bodies]
    assert {len(prompt) for prompt in prompts} == {20}
    assert all(first[1] != second[1] for first, second in pairwise(prompts))
    assert words.next_body(b'{"prompt": "about"}') is None


@pytest.mark.parametrize(("tokens", "prefix"), [(40, 0), (40, 8), (9, 0), (5, 0), (4, 0)])
def test_prompts_have_the_exact_number_of_words_after_a_shared_prefix(tokens: int, prefix: int) -> None:
    writer = PromptWriter(exact(), 0, unique=True)
    shared = writer.prefix(0, prefix) if prefix else []
    marked = writer.prompt(tokens, shared)
    assert writer.unique is not None
    first, second = (writer.unique.filled(marked).split() for _ in range(2))
    assert len(first) == len(second) == tokens - 3
    at = max(prefix, 1)
    assert first[:at] == second[:at] == (shared or ["about"])
    if tokens > 4:
        assert first[at] != second[at]
        assert first[at + 18 :] == second[at + 18 :]
    assert writer.fewest_distinct == 5 ** min(18, tokens - 3 - at)


def test_prompts_that_are_cut_keep_their_number_of_tokens() -> None:
    counter = CountsBytes()
    vocabulary = Vocabulary(assumed_vocabulary().words, ("about",), 0, 5.5, exact=False)
    writer = PromptWriter(vocabulary, 0, counter, unique=True)
    marked = writer.prompt(200)
    assert writer.unique is not None
    prompts = {writer.unique.filled(marked) for _ in range(10)}
    assert len(prompts) == 10
    assert {counter.count(prompt) for prompt in prompts} == {200}


@pytest.mark.parametrize("processes", [1, 2])
def test_no_body_is_sent_twice_over_processes_and_levels(processes: int) -> None:
    bodies: list[bytes] = []

    def handle(peer: socket.socket) -> None:
        while request := read_request(peer):
            bodies.append(request.partition(b"\r\n\r\n")[2])
            peer.sendall(ANSWER)

    words = UniqueWords(WORDS)
    marked = [b"%d about %s" % (number, words.mark(12).encode()) for number in range(2)]
    requests = [
        PreparedRequest(number, HEAD, body, next_body=words.next_body(body)) for number, body in enumerate(marked)
    ]
    with serving(handle) as port:
        for _ in range(2):
            ran = run(plan(port, requests, ClosedLoop(4), requests=60), processes)
            assert ran.records["request"].tolist().count(0) == 30
    assert len(bodies) == 120
    assert len({body[2:] for body in bodies}) == 120
