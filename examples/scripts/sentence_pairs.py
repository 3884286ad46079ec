"""What the sentence encoder learns from: texts that belong together, of docstrings and the chat model's facts."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from chat_corpus import Fact, facts

# Packages whose docstrings say what their functions do.
_PACKAGES = ("numpy", "scipy", "sklearn", "torch", "onnx", "networkx", "sympy")
_STANDARD = (
    *("argparse", "array", "ast", "asyncio", "base64", "bisect", "bz2", "calendar", "codecs", "collections", "copy"),
    *("concurrent.futures", "configparser", "contextlib", "csv", "ctypes", "datetime", "decimal", "difflib", "dis"),
    *("email", "email.message", "enum", "fractions", "ftplib", "functools", "getpass", "gettext", "glob", "gzip"),
    *("hashlib", "heapq", "hmac", "html", "http.client", "http.server", "imaplib", "inspect", "io", "ipaddress"),
    *("itertools", "json", "linecache", "locale", "logging", "logging.handlers", "lzma", "mailbox", "math"),
    *("mimetypes", "mmap", "multiprocessing", "multiprocessing.shared_memory", "operator", "os", "os.path", "pathlib"),
    *("pickle", "platform", "plistlib", "poplib", "pprint", "profile", "queue", "random", "re", "sched", "secrets"),
    *("select", "selectors", "shelve", "shlex", "shutil", "signal", "smtplib", "socket", "socketserver", "sqlite3"),
    *("ssl", "stat", "statistics", "string", "struct", "subprocess", "sys", "tarfile", "tempfile", "textwrap"),
    *("threading", "time", "timeit", "tokenize", "traceback", "types", "typing", "unicodedata", "unittest"),
    *("unittest.mock", "urllib.parse", "urllib.request", "uuid", "warnings", "wave", "weakref", "webbrowser", "xml"),
    *("xml.dom", "xml.etree.ElementTree", "zipfile", "zlib", "zoneinfo"),
)
# Lines that are not sentences: calls, sections, examples, links.
_MARKUP = re.compile(r"^[\w.]+\(|>>>|--|==|\.\. |::|https?:|\*\*|Array API")
_NOT_IMPORTED = ("_", "test", "conf", "this")
_SHORT, _LONG = 20, 300  # characters of a passage
_PASSAGES = 3  # of a docstring, its first sentence among them


@dataclass(frozen=True)
class Held:
    """A question that is not learnt, with the place of its answer among the candidates."""

    question: str
    answer: int


@dataclass(frozen=True)
class Lessons:
    """Groups of texts, each of which belongs to the others of its group, and what is kept for the examination.

    `worded` are questions of facts that are known by other wordings; `unseen` are first sentences of docstrings of
    which nothing is learnt, to be found by another passage. Each has its own candidates.
    """

    groups: list[tuple[str, ...]]
    answers: list[str]
    worded: list[Held]
    passages: list[str]
    unseen: list[Held]


def lessons(chance: random.Random) -> Lessons:
    """Collect everything; the same packages and the same seed give the same lessons."""
    taught = facts()
    groups: list[tuple[str, ...]] = []
    worded: list[Held] = []
    answers = sorted({fact.answer for fact in taught})
    for fact in taught:
        # A question exists in several spellings, which do not count as different wordings.
        wordings = sorted({question.lower().rstrip("?.") for question in fact.questions})
        chance.shuffle(wordings)
        if len(wordings) > 1 and not _is_name(fact):
            worded.append(Held(wordings.pop(), answers.index(fact.answer)))
        groups.append((*wordings, fact.answer))
    documented = sorted(set(_documented()))
    chance.shuffle(documented)
    kept = len(documented) // 20
    passages = [passage for _, passage, *_ in documented[:kept]]
    unseen = [Held(first, place) for place, (first, *_) in enumerate(documented[:kept])]
    return Lessons(groups + documented[kept:], answers, worded, passages, unseen)


def _is_name(fact: Fact) -> bool:
    """Whether a fact is of a docstring or flag, whose questions are made of its name by patterns."""
    return any(f"Explain {question}." in fact.questions for question in fact.questions)


def _documented() -> Iterator[tuple[str, ...]]:
    """Yield the first sentence, further passages and the name in words of everything that says more than a sentence."""
    for module in _modules():
        for name, member in sorted(vars(module).items()):
            if name.startswith("_") or not callable(member):
                continue
            home = getattr(member, "__module__", None) or module.__name__
            if home.split(".")[0].lstrip("_") != module.__name__.split(".")[0]:
                continue
            yield from _documented(name, member)
            if inspect.isclass(member):
                for inner, method in sorted(vars(member).items()):
                    if not inner.startswith("_") and callable(method):
                        yield from _documented(f"{name} {inner}", method)


def _documented(name: str, member: object) -> Iterator[tuple[str, ...]]:
    try:
        text = inspect.getdoc(member) or ""
    except Exception:  # what a lazy attribute of a package raises
        return
    passages = list(_passages(text))[:_PASSAGES]
    if len(passages) > 1:
        spoken = name.replace("_", " ").strip()
        yield (*passages, spoken) if len(spoken) > 3 else tuple(passages)


def _passages(text: str) -> Iterator[str]:
    seen = set()
    for paragraph in re.split(r"\n\s*\n", text):
        plain = " ".join(paragraph.replace("``", "`").split())
        if _MARKUP.search(plain) or not plain.isascii():
            continue
        sentence = " ".join(re.split(r"(?<=[a-z0-9)`'\"]\.)\s", plain)[:2])[:_LONG]
        if len(sentence) >= _SHORT and " " in sentence and sentence not in seen:
            seen.add(sentence)
            yield sentence


def _modules() -> Iterator[object]:
    names = list(_STANDARD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in _PACKAGES:
            imported = importlib.import_module(package)
            inner = [module.name for module in pkgutil.iter_modules(imported.__path__)]
            names += [
                package,
                *(f"{package}.{name}" for name in inner if not name.startswith(("_", "test", "conf", "this"))),
            ]
        for name in names:
            try:
                yield importlib.import_module(name)
            except Exception:  # an optional part of a package, or one that is for another system
                continue
