"""Read files of prompts: a line of text each, or JSONL as aiperf, genai-perf and the OpenAI API write it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from conch.measure.bench.input_settings import InputError

_TEXTS = ("text", "prompt", "text_input", "input", "question")
_OUTPUT_TOKENS = ("output_length", "max_tokens", "max_completion_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """A prompt, or the messages of a conversation so far; `turns` are the later messages of the user."""

    content: str | list[dict[str, Any]]
    output_tokens: int | None = None
    turns: tuple[str, ...] = ()


def read_lines(path: Path) -> list[FilePrompt]:
    """Return one prompt for each line that is not blank. Raises InputError."""
    prompts = [FilePrompt(line.strip()) for line in _text(path).splitlines() if line.strip()]
    if not prompts:
        raise InputError(f"--input-data {path} has no prompts")
    return prompts


def read_json_lines(path: Path) -> list[FilePrompt]:
    """Return the prompts of a JSONL file. Entries of aiperf with the same `session_id` are turns. Raises InputError."""
    prompts: list[FilePrompt] = []
    sessions: dict[str, int] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = orjson.loads(line)
        except ValueError as error:
            raise InputError(f"--input-data {path}:{number}: not valid JSON: {error}") from None
        prompt = read_entry(entry, f"--input-data {path}:{number}")
        session = entry.get("session_id") if isinstance(entry, dict) else None
        if session is not None and str(session) in sessions and isinstance(prompt.content, str):
            before = prompts[sessions[str(session)]]
            prompts[sessions[str(session)]] = FilePrompt(
                before.content, before.output_tokens, (*before.turns, prompt.content)
            )
            continue
        if session is not None:
            sessions[str(session)] = len(prompts)
        prompts.append(prompt)
    if not prompts:
        raise InputError(f"--input-data {path} has no prompts")
    return prompts


def read_payloads(path: Path, document: Any) -> list[FilePrompt] | None:
    """Return the prompts of genai-perf's JSON, whose entries have a "payload"; None for another document."""
    data = document.get("data") if isinstance(document, dict) else None
    if not isinstance(data, list) or not data or not isinstance(data[0], dict) or "payload" not in data[0]:
        return None
    prompts = []
    for number, entry in enumerate(data):
        payload = entry.get("payload")
        request = payload[0] if isinstance(payload, list) and payload else payload
        prompts.append(read_entry(request, f"--input-data {path}: entry {number}"))
    return prompts


def read_entry(entry: Any, where: str) -> FilePrompt:
    """Return the prompt of one JSON value: a text, or an object with one of the known fields. Raises InputError."""
    if isinstance(entry, str):
        return FilePrompt(entry)
    if not isinstance(entry, dict):
        raise InputError(f"{where}: neither a text nor an object")
    if isinstance(entry.get("body"), dict):  # a batch file of the OpenAI API
        entry = entry["body"]
    limit = next((int(entry[name]) for name in _OUTPUT_TOKENS if isinstance(entry.get(name), int)), None)
    messages = entry.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return FilePrompt(messages, limit)
    turns = entry.get("turns")
    if isinstance(turns, list) and turns:
        first, *later = [_turn(turn, where) for turn in turns]
        return FilePrompt(first, limit, tuple(later))
    return FilePrompt(_prompt(entry, where), limit)


def _turn(turn: Any, where: str) -> str:
    return turn if isinstance(turn, str) else _prompt(turn if isinstance(turn, dict) else {}, where)


def _prompt(entry: Mapping[str, Any], where: str) -> str:
    for name in _TEXTS:
        value = entry.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and isinstance(value[0], str):
            return str(value[0])
    texts = entry.get("texts")
    if isinstance(texts, list) and texts:
        return " ".join(map(str, texts))
    raise InputError(f"{where} has no prompt: expected one of {', '.join(_TEXTS)}, messages or turns")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"--input-data {path} is not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"--input-data {path} cannot be read: {error.strerror}") from None
