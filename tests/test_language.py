"""The house style that a program can check: phrases, names of bounds and classes, Markdown.

`python -m tests.test_language [PATH…]` lists the findings in files and folders, by default in all, and exits with
status 1 if there are any.
"""

import ast
import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]

FOLDERS = ("src", "tests", "tools", "benchmarks", "examples", "docs")
SUFFIXES = {".py", ".md", ".pbtxt", ".toml"}
# Written by `make docs` from texts in src; and this file, which spells the phrases out.
EXEMPT = {
    "docs/reference/flags.md",
    "docs/check.md",
    "docs/degradations.md",
    "docs/reference/metrics.md",
    "tests/test_language.py",
}
MAX_COLUMNS = 120
# A word of this length, such as a URL, may make a line longer.
MIN_LONG_WORD = 80

# What to write instead of a phrase: a regular expression over words with one space between them.
INSTEAD = {
    r"whoever|whomever": "the role: the caller, the thread that …",
    r"(?<!['\"-])(nobody|somebody|anybody|everybody)(?!['\"-])": "the role: no caller, a client, another thread",
    r"anew": "again, from scratch, or a verb with re-: reload, rewrite, restart",
    r"of (its|their|his|one's) own": "its own x, a separate x, a dedicated x",
    r"(become|becomes|became|becoming) of": "the result, the outcome, whether it is supported",
    r"so-manieth": "one of every N",
    r"so many(?![\w ]{1,30} that\b)": "N, or the name of the parameter",
    r"(tell|tells|telling) of": "reports, describes, names",
    r"(?<![\[(.=\"'])told(?! \+?=|\[|\.\w|\))": "notified, reported, sent, given; told apart: distinguished",
    r"hear|hears|hearing|heard": "receive, is notified, is called when",
    r"(let|lets|letting) (it |them )?go": "release, drop, free",
    r"by heart": "memorizes, trained on",
    r"((fall|falls|fell|fallen|falling) )?asleep": "idle, stopped; of a thread: blocked",
    r"(want|wants|wanted|wanting) to know": "needs, requests, asks for",
    r"forgive|forgives|forgiven|forgave|forgiving": "tolerate, allow, ignore",
    r"misdemeanours?": "violation",
    r"(come|comes|came|coming) home": "returns to",
    r"wish|wishes|wished|wishing": "request, require, need",
    r"(go|goes|went|gone) on(?! (the|a|an|top|its|their|this|that|which|`code`|each|disk)\b)": "continue, resume",
    r"mend|mends|mended|mending": "fix, repair",
    r"tried again": "retry",
    r"(started|restarted|killed|stopped|closed|ended) at once": "now, immediately",
    r"leavings|trifles?|unhurried|upkeep": "the field's word: remains, noise, without a timeout, maintenance",
    r"(?<!there )(?<!there must )(?<!there can )(?<!there may )(?<!there will )(?<!there should )"
    r"(is|are|was|were|be|been|being) no(?= [\w{`'])(?! (longer|later|larger|bigger|smaller|better|faster|slower|fewer"
    r"|shorter|older|newer|earlier|higher|lower|wider|greater|stricter|cheaper|more|less|worse|different|one|such|way"
    r"|use|good|limit|reason)\b)": "is not a …, has no …, there is no …",
}
PHRASE = re.compile("|".join(rf"(?P<p{n}>\b(?:{phrase})(?!\w))" for n, phrase in enumerate(INSTEAD)))

# A number at the top of a module, written out or computed from others.
NUMBER = re.compile(r"([A-Z_][A-Z0-9_]*)(?:: \w+)? = [-+*/<|~(). A-Z0-9_e]*\d[-+*/<|~(). A-Z0-9_e]*(?:#.*)?$")
ODD_BOUND = re.compile(
    r"_?(?!(MAX|MIN|DEFAULT)_)(\w+_)?"
    r"(MOST|LEAST|LARGEST|LONGEST|SHORTEST|SMALLEST|FEWEST|WIDEST|DEEPEST|HIGHEST|LOWEST|USUAL|LIMIT|BOUND|PATIENCE|AT_ONCE)"
    r"(_\w+)?"
)
VAGUE_VARIABLES = ("found", "each", "one")
# What may bind one of them; programs of such files are parsed.
BINDING = re.compile(rf"\b(?:{'|'.join(VAGUE_VARIABLES)})(?: :?= | in |, )")
BOUND_INSTEAD = "MAX_…, MIN_… or DEFAULT_…, the unit at the end (_BYTES, _S, _NS); …_TIMEOUT_S for a time"

# Names of classes of Triton's Python API, which `backends` has for models and the server for itself.
TRITON_CLASSES = {
    "InferenceRequest": "pb_utils.InferenceRequest",
    "InferenceResponse": "pb_utils.InferenceResponse",
    "Logger": "pb_utils.Logger",
    "ModelConfig": "pb_utils.ModelConfig, the argument of auto_complete_config",
    "Tensor": "pb_utils.Tensor",
    "TritonPythonModel": "the class that every model.py defines",
}

COMMENT_OR_STRING = re.compile(
    r'#[^\n]*|[rRbBuUfF]{0,2}(?:"""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\''
    r'|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')',
    re.DOTALL,
)
QUOTES = re.compile(r"^[rRbBuUfF]{0,2}(\"\"\"|'''|\"|')|(\"\"\"|'''|\"|')$")


class Finding(NamedTuple):
    path: str
    line: int
    what: str
    instead: str


class Text:
    """Lines as one text, so that phrases may go across their ends."""

    def __init__(self) -> None:
        self._words, self._starts, self._lines, self._size = list[str](), list[int](), list[int](), 0

    def add(self, line: int, text: str) -> None:
        for word in re.sub(r"`[^`\n]+`", "`code`", text).split():
            self._words.append(word)
            self._starts.append(self._size)
            self._lines.append(line)
            self._size += len(word) + 1

    def check(self, path: str) -> Iterator[Finding]:
        for start, phrase, instead in phrases(" ".join(self._words)):
            word = bisect_right(self._starts, start) - 1
            around = " ".join(self._words[max(word - 2, 0) : word + phrase.count(" ") + 3])
            yield Finding(path, self._lines[word], f'"{phrase}" in "{around}"', instead)


def phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield where a banned phrase begins, the phrase and what to write instead."""
    for match in PHRASE.finditer(text.lower()):
        yield match.start(), match[0], list(INSTEAD.values())[int(str(match.lastgroup)[1:])]


def python_texts(source: str) -> Iterator[Text]:
    """Yield comments, docstrings and strings of several words; those with only space between them are one text."""
    text, end, was_comment = Text(), 0, False
    for match in COMMENT_OR_STRING.finditer(source):
        piece, is_comment = match[0], match[0].startswith("#")
        if not is_comment and " " not in piece:
            continue
        if source[end : match.start()].strip() or is_comment != was_comment:
            yield text
            text = Text()
        end, was_comment = match.end(), is_comment
        if not is_comment:
            piece = re.sub(r"\{[^{}]*\}", "{}", QUOTES.sub("", piece).replace("\\n", "  "))
        first = source.count("\n", 0, match.start()) + 1
        for number, line in enumerate(piece.split("\n"), first):
            text.add(number, line.lstrip("# "))
    yield text


def other_texts(lines: Iterable[tuple[int, str]], is_markdown: bool) -> Iterator[Text]:
    """Yield paragraphs and rows of tables of Markdown, or the comments of a configuration or a Makefile."""
    text = Text()
    for number, line in lines:
        before, _, comment = line.partition("#")
        if line.startswith("|") or not line.strip() if is_markdown else before.strip() or not comment:
            yield text
            text = Text()
        text.add(number, re.sub(r"\]\([^)]*\)", "]", line) if is_markdown else comment.lstrip("#"))
    yield text


def outside_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers and texts of Markdown's lines outside fenced code."""
    fenced = False
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def check_layout(path: str, lines: Iterable[tuple[int, str]]) -> Iterator[Finding]:
    """Check the width and the headings of Markdown."""
    for number, line in lines:
        is_long = len(line) > MAX_COLUMNS and max(map(len, line.split())) < MIN_LONG_WORD
        if is_long and not line.startswith("|"):
            yield Finding(path, number, f"{len(line)} columns", f"at most {MAX_COLUMNS}")
        if match := re.match(r"#+ (.*)", line):
            if match[1].endswith(tuple(".,:;!?…")) or match[1].startswith("…"):
                yield Finding(path, number, f'heading "{match[1]}"', "no punctuation at its ends")
            if re.match(r"(What|Where|Which|Who|When|Why|How)\b(?! to\b)", match[1]):
                yield Finding(path, number, f'heading "{match[1]}"', "a noun phrase or an imperative")


def check_names(path: str, source: str) -> Iterator[Finding]:
    """Check the names of functions, classes and variables, and of numbers at the top of a module."""
    for number, line in enumerate(source.split("\n"), 1):
        if match := re.match(r" *(?:async )?(?:def|class) (\w+)", line):
            words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", match[1])
            yield from (Finding(path, number, f'name "{match[1]}"', instead) for *_, instead in phrases(words))
        elif (match := NUMBER.match(line)) and ODD_BOUND.fullmatch(match[1]):
            yield Finding(path, number, f'bound "{match[1]}"', BOUND_INSTEAD)
    if BINDING.search(source):
        nodes = list(ast.walk(ast.parse(source)))
        fields = {node.target for node in nodes if isinstance(node, ast.AnnAssign)}  # which may be keys of a JSON
        bound = (node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        for node in bound:
            if node.id in VAGUE_VARIABLES and node not in fields:
                yield Finding(path, node.lineno, f'variable "{node.id}"', "the noun of what it is")


@cache
def public_classes() -> dict[str, list[str]]:
    """Return the places of each public class of the package."""
    places = defaultdict[str, list[str]](list)
    for path in sorted((ROOT / "src" / "conch").rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if match := re.match(r"class ([A-Za-z]\w*)", line):
                places[match[1]].append(f"{path.relative_to(ROOT).as_posix()}:{number}")
    return places


def check_classes(path: str) -> Iterator[Finding]:
    """Check that no class of the package outside the file has the name of one in it."""
    for name, places in public_classes().items():
        if len(places) > 1 and name not in TRITON_CLASSES:
            for place in places:
                if place.startswith(f"{path}:"):
                    others = ", ".join(other for other in places if other != place)
                    yield Finding(path, int(place.rpartition(":")[2]), f'class "{name}"', f"a name unlike {others}")


@cache
def check(path: Path) -> list[Finding]:
    """Return what is wrong in a file, by line."""
    name, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    findings = list[Finding]()
    if path.suffix == ".py":
        texts = python_texts(source)
        findings += [*check_names(name, source), *check_classes(name)]
    elif path.suffix == ".md":
        texts = other_texts(outside_code(source), is_markdown=True)
        findings += check_layout(name, outside_code(source))
    else:
        texts = other_texts(enumerate(source.split("\n"), 1), is_markdown=False)
    return sorted(
        [*findings, *(finding for text in texts for finding in text.check(name))], key=lambda finding: finding.line
    )


def all_files() -> Iterator[Path]:
    yield from (path for path in sorted(ROOT.iterdir()) if path.suffix in {".md", ".toml"} or path.name == "Makefile")
    for folder in FOLDERS:
        yield from (path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES and path.is_file())


def area_of(path: Path) -> str:
    """Return the first folder of a file, for the package and the tests with the one below it; "root" without any."""
    folders = path.relative_to(ROOT).parts[:-1]
    depth = {"src": 3, "tests": 2}.get(folders[0], 1) if folders else 0
    return "/".join(folders[:depth]) or "root"


@cache
def areas() -> dict[str, list[Path]]:
    files = defaultdict[str, list[Path]](list)
    for path in all_files():
        if path.relative_to(ROOT).as_posix() not in EXEMPT:
            files[area_of(path)].append(path)
    return files


def listing(findings: Iterable[Finding]) -> str:
    return "\n".join(f"{finding.path}:{finding.line}: {finding.what}: write {finding.instead}" for finding in findings)


@pytest.mark.parametrize("area", sorted(areas()))
def test_area_follows_the_style(area: str) -> None:
    findings = [finding for path in areas()[area] for finding in check(path)]
    assert not findings, listing(findings)


FINE = [
    "it is no longer served",
    "there is no model of this name, and there must be no other",
    "runs as user 'nobody'",
    "the default is no limit",
    "a frame goes on the wire",
    "`told` is the callback",
    "told = []; json.dumps(told)",
    "a home for models that come from homes",
]


@pytest.mark.parametrize("text", FINE)
def test_plain_words_are_fine(text: str) -> None:
    assert list(paragraph(text).check("x")) == []


WRONG = {
    "Whoever comes later": "whoever",
    "'x' is no image": "is no",
    "what is no UTF-8": "is no",
    "it is told of the end": "told",
    "it is tried again in 2 s": "tried again",
    "at most so many bytes": "so many",
    "Hear that the client reads": "hear",
    "in a process of its own.": "of its own",
    "a client is forgiven": "forgiven",
}


@pytest.mark.parametrize(("text", "phrase"), WRONG.items())
def test_phrases_are_found(text: str, phrase: str) -> None:
    [finding] = paragraph(text).check("x")
    assert finding.what.startswith(f'"{phrase}"')


def paragraph(text: str) -> Text:
    result = Text()
    result.add(1, text)
    return result


def test_phrases_are_found_across_lines() -> None:
    source = '# It has a thread of\n# its own.\nraise Error("let "\n  f"go of {x}")\n'
    findings = [(finding.line, finding.instead) for text in python_texts(source) for finding in text.check("x")]
    assert findings == [
        (1, INSTEAD[r"of (its|their|his|one's) own"]),
        (3, INSTEAD[r"(let|lets|letting) (it |them )?go"]),
    ]


def test_names_are_checked() -> None:
    source = "def _so_many(): pass\n_MOST_BYTES = 2 * GIB  # 2\nMAX_LIMIT = 3\nNOBODY = 65534\nclass Heard: ...\n"
    assert [name.line for name in check_names("x", source)] == [1, 2, 5]
    source = 'for each in "each":\n    found = one = each\n    print(one := "for one in each")\n'
    assert [name.line for name in check_names("x", source)] == [1, 2, 2, 3]


def main(arguments: list[str]) -> int:
    """Print the findings in paths, by default in all, and their numbers by area."""
    wanted = [Path(argument).resolve() for argument in arguments]
    numbers = Counter[str]()
    for area, files in areas().items():
        for path in files:
            if not wanted or any(path.is_relative_to(folder) for folder in wanted):
                findings = check(path)
                numbers[area] += len(findings)
                print(listing(findings), end="\n" if findings else "")
    for area, number in numbers.items():
        if number:
            print(f"{number:6} {area}", file=sys.stderr)
    return bool(numbers.total())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
