"""`conch k8s render`: write the objects that the Helm chart of the wheel creates."""

import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conch.base.command_line.command_parser import CommandParser
from conch.base.command_line.files import write_text
from conch.base.command_line.option_types import namespace
from conch.base.errors import ConchError, ConfigError

_FAILURE = 1
# Services are called like the release, so it is a DNS label; Helm's limit leaves room for suffixes.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?")
_UNESCAPED_DOMAIN = re.compile(r"^[^=]*(?<!\\)\.[a-z]+/")


def k8s(arguments: Sequence[str]) -> int:
    """Write objects; return the exit status: 0, 1 after a failure, 2 for invalid arguments."""
    options = _parser().parse_args(arguments)
    try:
        return write_text("conch k8s", options.output, _render(options))
    except ConchError as error:
        print(f"conch k8s: {error}", file=sys.stderr)
    return _FAILURE


def release_name(text: str) -> str:
    """Return the name of a release. Raises ArgumentTypeError."""
    if not _NAME.fullmatch(text):
        message = (
            f"'{text}' is not a valid release name; use at most 53 lower-case letters, digits and -, "
            "beginning with a letter, e.g. gpt2"
        )
        raise ArgumentTypeError(message)
    return text


def _parser() -> CommandParser:
    parser = CommandParser("conch k8s", description="Kubernetes objects of a deployment, rendered by Helm.")
    commands = parser.add_subparsers(title="commands", metavar="command", required=True)
    render = commands.add_parser("render", help="write the objects that `helm install` with the chart creates")
    render.add_argument("name", metavar="NAME", type=release_name, help="name of the release, such as gpt2")
    render.add_argument(
        "-f", "--values", metavar="FILE", type=Path, action="append", default=[], help="YAML file of values; repeatable"
    )
    render.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="set values as in Helm")
    render.add_argument("--set-string", metavar="KEY=VALUE", action="append", default=[], help="set texts as in Helm")
    render.add_argument("-n", "--namespace", type=namespace, default="default", help="namespace (default: default)")
    render.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to a file instead of stdout")
    return parser


def _render(options: Namespace) -> str:
    from conch.base.yaml_documents import dump_documents

    # With a separator at the beginning, files of several releases can be concatenated.
    return "---\n" + dump_documents(_objects(options, [(path, _values_of(path)) for path in options.values]))


def _objects(options: Namespace, files: Sequence[tuple[Path, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return the objects. Raises ConfigError, which names the file of values if the mistake is in one alone."""
    from conch.base.helm import merge_values
    from conch.operate.deployment.chart import release_objects

    release = (options.name, options.namespace)
    values = merge_values([document for _, document in files])
    try:
        return release_objects(values, *release, assignments=options.set, text_assignments=options.set_string)
    except ConfigError as error:
        message = error.message
    for path, document in reversed(files):
        try:
            release_objects(document, *release)
        except ConfigError as error:
            if error.message == message:
                raise ConfigError(f"{path}: {message.removeprefix('values: ')}") from None
    if any(_UNESCAPED_DOMAIN.search(assignment) for assignment in (*options.set, *options.set_string)):
        message += r"; in --set, write a dot within a key as '\.', such as nvidia\.com/gpu, in quotes"
    raise ConfigError(message)


def _values_of(path: Path) -> dict[str, Any]:
    from conch.base.command_line.files import read_yaml

    documents = read_yaml(path)
    if not documents:
        return {}
    if len(documents) > 1 or not isinstance(documents[0], dict):
        raise ConfigError(f"{path}: not a mapping of values")
    document: dict[str, Any] = documents[0]
    return document
