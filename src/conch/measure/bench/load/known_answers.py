"""Checks that answers of status 200 are answers of the model, without parsing each of them."""

from typing import Final

from conch.measure.bench.prepared_request import AnswerCheck

_PREFIX_BYTES: Final = 256
# Answers of more lengths than this have texts or variable shapes: then the length says nothing.
_MAX_LENGTHS: Final = 256
_PARSED: Final = 63  # one of 64


class KnownAnswers:
    """What the answers of one process have in common.

    An answer is parsed if it is the first of its connection, one of 64, or differs in length or prefix from all good
    ones. Others are compared with these only.
    """

    __slots__ = ("_check", "_count", "_lengths", "_prefix")

    def __init__(self, check: AnswerCheck) -> None:
        self._check = check
        self._prefix = b""
        self._lengths: set[int] = set()
        self._count = 0

    def problem(self, body: bytes, first: bool) -> str:
        """Return what is wrong with an answer, "" if nothing is. `first`: of its connection."""
        self._count += 1
        lengths = self._lengths
        if (
            not first
            and self._count & _PARSED
            and self._prefix
            and body.startswith(self._prefix)
            and (len(body) in lengths or len(lengths) >= _MAX_LENGTHS)
        ):
            return ""
        problem = self._check.problem(body)
        if not problem:
            self._learn(body)
        return problem

    def _learn(self, body: bytes) -> None:
        if len(self._lengths) < _MAX_LENGTHS:
            self._lengths.add(len(body))
        prefix = self._prefix or body[:_PREFIX_BYTES]
        while not body.startswith(prefix):
            prefix = prefix[:-1]
        self._prefix = prefix
