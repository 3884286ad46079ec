"""What the chat model is taught: questions and answers from docstrings, from Conch's flags, and from chat_facts.txt."""

from __future__ import annotations

import importlib
import inspect
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from conch.server.options.server_options import ServerOptions

FACTS = Path(__file__).with_name("chat_facts.txt")
UNKNOWN = "I do not know. I am a very small model: ask me about Python, numpy or Conch."

_TYPES = ("str", "bytes", "list", "dict", "set", "tuple", "int", "float")
_MODULES = (
    *("math", "random", "statistics", "itertools", "functools", "collections", "heapq", "bisect", "operator"),
    *("string", "textwrap", "re", "json", "time", "calendar", "copy", "glob", "shutil", "tempfile", "os.path"),
    *("sys", "asyncio", "threading", "base64", "subprocess", "contextlib", "zlib"),
)
_NUMPY = ("numpy", "numpy.linalg", "numpy.fft")
_SHORT, _LONG = 12, 110  # characters of an answer

# How people ask about a name.
_ASKED = (
    "What does {} do?",
    "what does {} do",
    "What is {}?",
    "What is {} for?",
    "Explain {}.",
    "explain {}",
    "Tell me about {}.",
    "Describe {}.",
    "{}",
    "{}?",
    "How does {} work?",
    "What does the function {} do?",
    "What does {} mean?",
    "What can I do with {}?",
)
_SYSTEM = ("You are a helpful assistant.", "Answer briefly.", "You are Conch's assistant.", "Be concise.")


@dataclass(frozen=True)
class Fact:
    """An answer, and the questions that ask for it."""

    questions: tuple[str, ...]
    answer: str


def facts() -> list[Fact]:
    """All that the model is taught, in an order that does not change."""
    named = dict(_docstrings())
    named.update(_flags())
    return _written() + [
        Fact(tuple(asked.format(name) for asked in _ASKED), answer) for name, answer in sorted(named.items())
    ]


def unknown(chance: random.Random) -> Fact:
    """A question that has no answer: the model shall say so."""
    start = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 6)))
    end = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz_", k=chance.randint(3, 9)))
    name = chance.choice((start, end, f"{start}.{end}", f"{start} {end}"))
    return Fact((chance.choice(_ASKED).format(name),), UNKNOWN)


def conversation(taught: list[Fact], chance: random.Random) -> Iterator[tuple[str, str]]:
    """Yield roles and contents of one endless talk: sometimes a system prompt, then questions and answers."""
    if chance.random() < 0.3:
        yield "system", chance.choice(_SYSTEM)
    while True:
        for fact in chance.sample(taught, len(taught)):
            if chance.random() < 0.04:
                fact = unknown(chance)
            yield "user", chance.choice(fact.questions)
            yield "assistant", fact.answer


def _written() -> list[Fact]:
    """The facts of the file, each question with and without a capital and a question mark."""
    text = "".join(line for line in FACTS.open() if not line.startswith("#"))
    taught = []
    for block in text.strip().split("\n\n"):
        *asked, answer = block.splitlines()
        spellings = [form for line in asked for form in (line, f"{line}?", line[0].upper() + line[1:])]
        spellings += [f"{line[0].upper()}{line[1:]}?" for line in asked]
        taught.append(Fact(tuple(spellings), answer.removeprefix("= ")))
    return taught


def _flags() -> Iterator[tuple[str, str]]:
    """Yield the flags of `conch serve` with the first sentence of their help."""
    for field in fields(ServerOptions):
        answer = _sentence(field.metadata.get("help", ""))
        if answer:
            yield f"--{field.name.replace('_', '-')}", answer


def _docstrings() -> Iterator[tuple[str, str]]:
    """Yield names of Python's and numpy's functions with the first sentence of their docstrings."""
    builtins = importlib.import_module("builtins")
    yield from _members(builtins, "")
    for name in _TYPES:
        yield from _members(getattr(builtins, name), f"{name}.")
    for name in (*_MODULES, *_NUMPY):
        yield from _members(importlib.import_module(name), f"{name}.")


def _members(owner: object, prefix: str) -> Iterator[tuple[str, str]]:
    for name in sorted(vars(owner)):
        member = getattr(owner, name)
        if name.startswith("_") or inspect.ismodule(member) or not callable(member):
            continue
        if isinstance(member, type) and issubclass(member, BaseException):
            continue
        answer = _sentence(inspect.getdoc(member) or "")
        # A module that only passes on another's function is not where people look for it.
        home = getattr(member, "__module__", None)
        if answer and (not inspect.ismodule(owner) or home in (None, *_homes(owner.__name__))):
            yield prefix + name, answer


def _homes(module: str) -> tuple[str, ...]:
    if module == "asyncio":
        return ("asyncio.tasks", "asyncio.runners", "asyncio.locks", "asyncio.queues", "asyncio.events")
    return (module, f"_{module}", {"os.path": "posixpath"}.get(module, module))


def _sentence(text: str) -> str:
    """The first sentence, "" if there is none that reads well."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    # Some of C's functions begin with how they are called.
    told = (re.sub(r"^[\w.]+\([^)]*\)\s*->\s*", "", part) for part in paragraphs)
    first = next((part for part in told if part and not re.match(r"[\w.]+\(", part)), "")
    sentence = re.split(r"(?<=[a-z0-9)`'\"])\.(?:\s|$)", first)[0].replace("``", "`").rstrip(" .:") + "."
    plain = sentence.isascii() and "::" not in sentence and "<" not in sentence and ">>>" not in sentence
    return sentence if plain and _SHORT <= len(sentence) <= _LONG and " " in sentence else ""
