"""Check files of any format as text: tags of images, the size of shared memory, secrets, and open tunnels of ssh."""

import re
from collections.abc import Iterator, Sequence

from conch.check.deployment.command_lines import fenced_lines
from conch.check.finding import Finding, Place, Related
from conch.check.source import SourceFile

_TEXTS = (".md", ".rst", ".txt")
_REPOSITORY = re.compile(r"^(?P<indent>[ \t-]*)repository:[ \t]*[\"']?(?P<name>[\w.:/-]+)[\"']?[ \t]*(?:#.*)?$")
_TAG = re.compile(r"^(?P<indent>[ \t-]*)tag:[ \t]*[\"']?(?P<tag>[\w.-]+)[\"']?[ \t]*(?:#.*)?$")
_IMAGE = re.compile(r"^[ \t-]*image:[ \t]*[\"']?(?P<name>[\w./-]+(?::\d+/[\w./-]+)?):(?P<tag>[\w.-]+)[\"']?")
_SHM = re.compile(r"^[ \t-]*(?:name:[ \t]*[\"']?)?shm[-_]size[\"']?[ \t]*(?:$|:)", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"^[ \t-]*(?:env|environment|extraEnv|envVars)[ \t]*:", re.IGNORECASE)
_NEAR = 4  # lines between `repository` and `tag`
_SECRET_NAME = re.compile(
    r"(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY|SECRET_ACCESS_KEY|ACCOUNT_KEY|PRIVATE_KEY)$", re.IGNORECASE
)
# Variables, templates, and texts that stand for a value.
_PLACEHOLDER = re.compile(
    r"[${<…]|\.\.\.|^(?:your|my|the)?[-_ ]?(?:x{3,}|changeme|change[-_]me|replace|example|none|null)", re.IGNORECASE
)
_KNOWN_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36,}|nvapi-[\w-]{40,}"
    r"|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----)"
)
_SSH = re.compile(r"(?<![\w./-])(?:/usr/bin/)?(?:auto)?ssh(?![\w.-])[ \t\"',]+(?=-|\\)")
_FORWARD = re.compile(r"(?<!\S)-\w*?([LRD])[ \t]*[\"']?((?:0\.0\.0\.0|\*|\[::\]|::):[^\s\"']+)")
_GATEWAY = re.compile(r"(?<!\S)-\w*?g\w*(?=[ \t\\\n])|GatewayPorts[= ]yes")


def check_images(sources: Sequence[SourceFile]) -> Iterator[Finding]:
    """Check the images of the files in one folder and of its texts."""
    texts = [source for source in sources if source.path.suffix in _TEXTS]
    yield from _differing([source for source in sources if source.path.suffix not in _TEXTS], texts)


def check_page(page: SourceFile) -> Iterator[Finding]:
    """Check the images that the code blocks of a Markdown page deploy against its prose."""
    lines = page.text.split("\n")
    code = fenced_lines(lines)
    if code:
        blocks = "\n".join(line if number in code else "" for number, line in enumerate(lines))
        prose = "\n".join("" if number in code else line for number, line in enumerate(lines))
        yield from _differing([SourceFile(page.path, blocks)], [SourceFile(page.path, prose)])


def _differing(sources: Sequence[SourceFile], texts: Sequence[SourceFile]) -> Iterator[Finding]:
    tags: dict[str, dict[str, Place]] = {}  # by image
    for source in sources:
        for name, tag, place in _deployed(source):
            named = tags[name] if name in tags else tags.setdefault(name, _named(texts, name))
            if named and tag not in named:
                other, named_place = next(iter(named.items()))
                message = f"{name}:{tag} is deployed, but the text names {name}:{other}"
                yield Finding(
                    "image-tag", place, message, related=(Related(named_place, f"the text names tag {other}"),)
                )


def check_shm_variable(source: SourceFile) -> Iterator[Finding]:
    """Check that the size of the shared memory is not set as an environment variable."""
    indent, inside = 0, False
    for number, line in enumerate(source.text.split("\n"), 1):
        if _ENVIRONMENT.match(line):
            inside, indent = True, _indent(line)
        elif (
            inside
            and line.strip()
            and (_indent(line) < indent or (_indent(line) == indent and "-" not in line[: indent + 1]))
        ):
            inside = False
        if inside and _SHM.match(line):
            yield Finding("shm-variable", Place(source.path, number, _indent(line) + 1), f"variable {line.strip(' -')}")


def _deployed(source: SourceFile) -> Iterator[tuple[str, str, Place]]:
    lines = source.text.split("\n")
    for number, line in enumerate(lines):
        if match := _IMAGE.match(line):
            yield match["name"], match["tag"], Place(source.path, number + 1, match.start("tag") + 1)
        elif match := _REPOSITORY.match(line):
            for near in (
                *range(number + 1, min(number + 1 + _NEAR, len(lines))),
                *range(number - 1, max(number - _NEAR, -1), -1),
            ):
                tag = _TAG.match(lines[near])
                if tag and len(tag["indent"]) == len(match["indent"]):
                    yield match["name"], tag["tag"], Place(source.path, near + 1, tag.start("tag") + 1)
                    break


def _named(texts: Sequence[SourceFile], name: str) -> dict[str, Place]:
    """Return the tags of an image that the texts name, with the first place of each."""
    tags: dict[str, Place] = {}
    for text in texts:
        for match in re.finditer(rf"(?<![\w./-]){re.escape(name)}:(?P<tag>[\w.-]*\w)", text.text):
            tags.setdefault(match["tag"], text.at(match.start("tag")))
    return tags


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def is_secret(name: str, value: str) -> bool:
    """Whether a setting is a secret, and its value is not a placeholder."""
    return bool(_SECRET_NAME.search(name)) and bool(value.strip()) and not _PLACEHOLDER.search(value.strip())


def secret_message(what: str) -> str:
    """Return the message for a setting, which does not contain the secret."""
    return f"the value of {what} is a secret in plain text"


def check_known_secrets(source: SourceFile) -> Iterator[Finding]:
    """Find tokens and keys by the forms that their services give them."""
    for match in _KNOWN_SECRET.finditer(source.text):
        if len(set(match[0][4:])) > 4 or match[0].startswith("-"):  # not hf_xxxx
            begin = match[0][:8].rstrip("-") if match[0].startswith("-") else match[0][:4]
            yield Finding("secret-text", source.at(match.start()), f"a secret that begins with '{begin}'")


def check_tunnels(source: SourceFile) -> Iterator[Finding]:
    """Find `ssh -L 0.0.0.0:…`, also over continuation lines."""
    read = 0
    for command in _SSH.finditer(source.text):
        if command.start() < read:
            continue  # in the command before
        line_begin = source.text.rfind("\n", 0, command.start()) + 1
        if source.text[line_begin : command.start()].lstrip().startswith(("#", "//")):
            continue
        end = read = _command_end(source.text, command.end())
        text = source.text[command.end() : end]
        for match in _FORWARD.finditer(text):
            message = f"ssh -{match[1]} {match[2]} listens on all addresses"
            yield Finding("tunnel-public", source.at(command.end() + match.start()), message)
        gateway = _GATEWAY.search(text)
        if gateway and re.search(r"(?<!\S)-\w*[LD]", text) and not _FORWARD.search(text):
            message = f"ssh {gateway[0]} makes the forwarded port listen on all addresses"
            yield Finding("tunnel-public", source.at(command.end() + gateway.start()), message)


def _command_end(text: str, start: int) -> int:
    """Return where a command ends: at the first line end that no backslash continues."""
    match = re.search(r"(?<!\\)\n|[;&|](?!\S)", text[start:])
    return start + match.start() if match else len(text)
