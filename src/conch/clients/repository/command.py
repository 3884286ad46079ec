"""`conch repo`: parse the command line of the sub-commands add, list, show, pack, pull and tag."""

import signal
import threading
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from conch.base.command_line.command_parser import CommandParser, printing
from conch.base.command_line.option_types import count
from conch.base.command_line.say import say
from conch.server.options.server_options import DEFAULT_CACHE_LIMIT_BYTES

_FAILURE, _INTERRUPTED = 1, 130
_SYNC_RETRY_S = 300
_REPOSITORY = "a directory, or an s3://, gs://, as://, oci:// or http(s):// URL"


def repo(arguments: Sequence[str]) -> int:
    """Run a sub-command; return the exit status: 0, 1 after a failure or SIGTERM, 130 after Ctrl-C."""
    given = repo_parser().parse_args(arguments)
    from conch.base.errors import ConchError

    try:
        with _terminated_as_interrupted(), printing(given):
            return _run(given)
    except ConchError as error:
        # Servers choose parts of messages.
        say(f"conch repo {given.command}: {error}")
    except KeyboardInterrupt as error:
        say(f"conch repo {given.command}: interrupted; fetched files are kept in the cache")
        return _FAILURE if error.args else _INTERRUPTED
    return _FAILURE


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(number)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Handle SIGTERM: the first process of a container, as in an init container, ignores it without a handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(given: Namespace) -> int:
    """Import and run the function of a sub-command; return the exit status. Raises ConchError."""
    if given.command == "add":
        from conch.clients.repository.add import add

        return add(given)
    if given.command in ("list", "show"):
        from conch.clients.repository.listing import list_models, show_model

        return list_models(given) if given.command == "list" else show_model(given)
    from conch.clients.repository.transfer import pack, pull, sync, tag

    if given.command == "pull":
        if given.retry_secs is None:
            given.retry_secs = _SYNC_RETRY_S if given.sync else 0.0
        return sync(given) if given.sync else pull(given)
    return pack(given) if given.command == "pack" else tag(given)


def repo_parser() -> CommandParser:
    """Return the parser of `conch repo`."""
    parser = CommandParser(
        "conch repo", description="Add models to a repository, list and show them, and pack them into OCI images."
    )
    commands = parser.add_subparsers(title="commands", metavar="command", dest="command", required=True)

    _describe_add(commands.add_parser("add", help="add a model to a repository", description=_ADD))
    listing = commands.add_parser("list", help="list the models of a repository", description=_LIST)
    listing.add_argument("repository", metavar="PATH|URL", help=_REPOSITORY)
    showing = commands.add_parser("show", help="show one model", description=_SHOW)
    showing.add_argument("repository", metavar="PATH|URL", help=_REPOSITORY)
    showing.add_argument("model", metavar="MODEL", help="name of the model")
    for command in (listing, showing):
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(quiet=False)

    packing = commands.add_parser("pack", help="push models to a registry as an OCI image", description=_PACK)
    packing.add_argument("path", metavar="PATH", help="directory with models")
    packing.add_argument("reference", metavar="REF", help="image, such as registry.example.com/team/models:1")
    pulling = commands.add_parser("pull", help="write the models of an image to a directory", description=_PULL)
    pulling.add_argument("repository", metavar="REF", help="image, such as registry.example.com/team/models:1, or URL")
    pulling.add_argument("path", metavar="PATH", help="directory for the models; created if missing")
    _describe_pull(pulling)
    tagging = commands.add_parser("tag", help="give an image in a registry another tag", description=_TAG)
    tagging.add_argument("reference", metavar="REF", help="image, such as registry.example.com/team/models@sha256:…")
    tagging.add_argument("tag", metavar="TAG", help="tag in the same repository, such as stable")
    packing.add_argument(
        "--modelcar",
        default="",
        metavar="BASE",
        help="write the models below /models of this image, which has a shell, for KServe; such as "
        "docker.io/library/busybox:1",
    )
    for command in (packing, pulling):
        command.add_argument("--model", action="append", default=[], metavar="NAME", help="only this model; repeatable")
    for command in (commands.choices[name] for name in ("add", "pack", "pull", "tag")):
        command.add_quiet_flag()
    for command in (listing, showing, pulling):
        command.add_argument(
            "--repository-cache", default="", metavar="DIR", help="directory for the cache of remote repositories"
        )
        command.add_argument(
            "--repository-cache-limit",
            type=_byte_count,
            default=DEFAULT_CACHE_LIMIT_BYTES,
            metavar="BYTES",
            help="maximum size of the copies of one repository in the cache; 0 for no limit (default: %(default)s)",
        )
    return parser


def _describe_pull(pulling: CommandParser) -> None:
    pulling.add_argument("--replace", action="store_true", help="replace existing models that differ")
    pulling.add_argument(
        "--sync",
        action="store_true",
        help="make the directory equal to the image, for init containers: replace models that differ, remove those of "
        "an earlier --sync that it does not have, keep the cache in the directory",
    )
    pulling.add_argument(
        "--verify-key",
        default="",
        metavar="FILE",
        help="public key that must have signed the image, such as cosign.pub",
    )
    pulling.add_argument(
        "--platform",
        default="",
        metavar="OS/ARCH",
        help="image to choose in an index of several platforms (default: this machine's)",
    )
    pulling.add_argument(
        "--retry-secs",
        type=float,
        metavar="N",
        help=f"time to wait for a registry that does not answer (default: 0; with --sync {_SYNC_RETRY_S})",
    )


def _describe_add(adding: CommandParser) -> None:
    adding.add_argument("source", metavar="SOURCE", help="file or folder, or hf://org/name[@revision][/file.gguf]")
    adding.add_argument(
        "--repository",
        default="models",
        metavar="DIR",
        help="model repository; created if missing (default: %(default)s)",
    )
    add_entry_flags(adding)
    adding.add_argument("--link", action="store_true", help="create symbolic links instead of copies")
    adding.add_argument("--force", action="store_true", help="replace an existing model of this name")


def add_entry_flags(adding: CommandParser) -> None:
    """Add the flags for what the file of a model does not say."""
    adding.add_argument("--name", default="", help="name of the model (default: the name of the source)")
    adding.add_argument(
        "--backend", default="", help="backend, if several support the model, such as openvino for ONNX"
    )
    for kind, example in (("input", "x:FP32:-1,3,224,224"), ("output", "OUTPUT__0:FP32:-1,1000")):
        adding.add_argument(
            f"--{kind}",
            action="append",
            type=_tensor,
            default=[],
            metavar="NAME:TYPE:DIMS",
            help=f"an {kind} of a model whose file does not declare its tensors, such as {example}; repeatable",
        )
    adding.add_argument(
        "--max-batch-size",
        type=count,
        default=0,
        metavar="N",
        help="with --input: dims do not include the batch dimension",
    )


def _byte_count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"'{text}' must be a whole number of bytes")
    return int(text)


def _tensor(text: str) -> tuple[str, str, list[int]]:
    name, _, rest = text.partition(":")
    datatype, _, dims = rest.partition(":")
    try:
        return name, datatype, [int(size) for size in dims.split(",")]
    except ValueError:
        raise ArgumentTypeError(f"'{text}' must have the form NAME:TYPE:DIMS, such as x:FP32:-1,3,224,224") from None


_ADD = (
    "Add a model to a repository, from this machine or from the Hugging Face Hub: a GGUF file, a folder with a "
    "language model in OpenVINO IR, a Hugging Face checkpoint (config.json with .safetensors files), an ONNX file, an "
    "OpenVINO IR (.xml with .bin), a TorchScript or torch.export file. The model is checked, and written completely or "
    "not at all."
)
_LIST = (
    "List the models of a repository: versions, backend, tensors, size. From a remote repository only small files are "
    "fetched. The exit status is 1 if a configuration cannot be read."
)
_SHOW = "Show the configuration of a model with all of its fields, its files and its labels."
_PACK = (
    "Push a repository, or some of its models, to an OCI registry, with one layer for each model, so that unchanged "
    "models are not sent again. Uses the logins of 'docker login'."
)
_TAG = "Give an image in a registry another tag, without moving its layers: for releases and for rolling back."
_PULL = "Write the models of an image, or of another remote repository, to a directory. Existing models are kept."
