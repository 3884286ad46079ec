"""The queue of a slow client."""

from random import Random

from conch.frontends.http.unsent_bytes import UnsentBytes


def test_bytes_are_taken_in_order_and_once() -> None:
    random = Random(1)
    queue, expected = UnsentBytes(), b""
    for _ in range(200):
        piece = random.randbytes(random.randrange(40_000))
        queue.append(piece)
        expected += piece
        assert len(queue) == len(expected)
    taken = queue.take()
    assert b"".join(taken) == expected
    assert max(map(len, taken)) < 2**20 + 40_000
    assert (len(queue), queue.take()) == (0, [])


def test_cleared_bytes_are_gone() -> None:
    queue = UnsentBytes()
    queue.append(b"1")
    queue.clear()
    queue.append(b"2")
    assert queue.take() == [b"2"]
