"""A copy of a chart whose templates print which of their branches they take.

A mark is a key of a mapping that all templates share; each template prints the keys at its end. `if`, `else if`, `else`
and `with` have a mark for each way; an `if` without `else` gets one.
"""

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tools.chart_values import ChartValues

_ACTION = re.compile(
    r"\{\{-?\s*(?:(?P<comment>/\*.*?\*/)|(?P<word>if|else|with|range|end|define)\b(?P<rest>.*?))\s*-?\}\}", re.DOTALL
)
# Templates whose argument does not lead to the root context, so that they cannot share the marks.
_WITHOUT_ROOT = ("conch.duration",)
_OPENING = ("if", "with", "range")
_SEEN = re.compile(r"#branch (\S+)")
_PRINT = "\n---\n{{- range $mark := keys .Values.global.branches }}\n#branch {{ $mark }}\n{{- end }}\n"


@dataclass
class MarkedChart:
    """The folder of the copy, and all marks: `file:line:way`."""

    folder: Path
    marks: set[str] = field(default_factory=set)

    def seen(self, texts: dict[str, str]) -> set[str]:
        """Return the marks in rendered texts."""
        return {mark for text in texts.values() for mark in _SEEN.findall(text)}


def marked_copy(chart: Path, folder: Path) -> MarkedChart:
    """Copy a chart, with marks."""
    copy = MarkedChart(folder)
    shutil.copytree(chart, folder)
    sections = frozenset(key.path[-1] for key in ChartValues(chart).keys if key.is_section)
    for path in (folder / "templates").iterdir():
        text = _marked(path.name, path.read_text(encoding="utf-8"), copy.marks, sections)
        # What would end the rendering is printed, so that the branches of checks are seen.
        text = re.sub(r"\bfail (?=[(\"])", 'printf "#%s" ', text)
        path.write_text(text if path.suffix == ".tpl" else text + _PRINT, encoding="utf-8")
    return copy


def _marked(name: str, text: str, marks: set[str], sections: frozenset[str]) -> str:
    parts: list[str] = []
    position = 0
    open_blocks: list[tuple[str, str, bool]] = []  # word, place, whether it has an else

    marked = True

    def mark(place: str, way: str, action: str = "") -> str:
        if not marked:
            return ""
        marks.add(f"{place}:{way}")
        return f'{{{{- $_ := set $marks "{place}:{way}" true {_end(action)}'

    # The argument of a template is the root context, or a list that begins with it. Others have no marks.
    begin = (
        '{{- $marks := dict }}{{- $root := . }}{{- if kindIs "slice" . }}{{- $root = index . 0 }}{{- end }}'
        '{{- if kindIs "map" $root }}{{- with get $root "Values" }}{{- $marks = .global.branches }}{{- end }}{{- end }}'
    )
    if not name.startswith("_"):
        parts.append(begin)
    for match in _ACTION.finditer(text):
        word, place = match["word"], f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
        parts.append(text[position : match.start()])
        position = match.end()
        if match["comment"]:
            parts.append(match[0])
        elif word in _OPENING:
            parts += [match[0], mark(place, "true", match[0])]
            open_blocks.append((word, place, word == "range" or _is_section(match["rest"], sections)))
        elif word == "define":
            marked = match["rest"].strip(' "') not in _WITHOUT_ROOT
            parts += [match[0], f'{begin}{{{{- "" {_end(match[0])}']
            open_blocks.append((word, place, False))
        elif word == "else":
            opened, first, _ = open_blocks.pop()
            chained = "if" in match["rest"].split()
            parts += [match[0], mark(place, "true" if chained else "else", match[0])]
            open_blocks.append((opened, first, not chained))
        elif word == "end":
            opened, first, complete = open_blocks.pop()
            if opened != "define" and not complete:
                parts += ["{{- else }}", mark(first, "false")]
            parts.append(match[0])
        else:
            parts.append(match[0])
    return "".join([*parts, text[position:]])


def _end(action: str) -> str:
    """Return the end of an inserted action: it trims what follows as the action before it does."""
    return "-}}" if action.endswith("-}}") else "}}"


def _is_section(pipeline: str, sections: frozenset[str]) -> bool:
    """Whether `with` has a mapping of fixed keys, which is never empty."""
    name = pipeline.strip().rpartition(".")[2]
    return name in sections
