"""How loads end: errors as clients and the log get them, and log lines in Triton's words."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from logging import getLogger
from textwrap import wrap
from time import monotonic
from typing import TypeVar

from conch.base.errors import Code, ConchError, ModelLoadError, NotFound
from conch.server.core.catalog import IndexEntry
from conch.server.repository.namespaces import ModelId

_log = getLogger(__name__)
_Error = TypeVar("_Error", bound=ConchError)

_HEADINGS = ("Model", "Version", "Status")
_STATUS_WIDTH = 88


def load_error(error: Exception) -> ConchError:
    """Return a failure to load as a ConchError. An unexpected one is logged with its traceback.

    An error of the system, such as a lack of descriptors or threads, may be transient: it is UNAVAILABLE.
    """
    if isinstance(error, ConchError):
        return error
    if isinstance(error, OSError | MemoryError):
        return ModelLoadError(str(error) or "out of memory", Code.UNAVAILABLE)
    _log.error("loading a model failed unexpectedly", exc_info=error)
    return ModelLoadError(f"{type(error).__name__}: {error}")


def load_failure(model: ModelId, failures: Mapping[int, ConchError]) -> ModelLoadError:
    """Return the error of a load some of whose versions have failed."""
    causes = "".join(
        f"version {version} is at UNAVAILABLE state: {code_name(error)}: {error.message};\n"
        for version, error in sorted(failures.items())
    )
    transient = any(error.code is Code.UNAVAILABLE for error in failures.values())
    return ModelLoadError(
        f"load failed for model '{model}': {causes}", Code.UNAVAILABLE if transient else Code.INVALID_ARG
    )


def code_name(error: ConchError) -> str:
    """Return the name of an error's code as Triton prints it."""
    return _CODE_NAMES[error.code]


def not_polled(name: str, error: NotFound) -> NotFound:
    """Return the error of a load whose model is not in the repository, with Triton's code for it."""
    return NotFound(f"failed to load '{name}', failed to poll from model repository: {error}", Code.INTERNAL)


def logged(error: _Error) -> _Error:
    """Log an error and return it."""
    _log.error("%s", error)
    return error


def raise_failures(results: Sequence[BaseException | None]) -> None:
    """Raise the errors of loading several models of one name as one error, if there are any."""
    errors = [result for result in results if result is not None]
    for error in errors:
        if len(errors) == 1 or not isinstance(error, ConchError):
            raise error
    if errors:
        text = "\n".join(error.message.rstrip() for error in errors if isinstance(error, ConchError))
        raise ModelLoadError(text, getattr(errors[0], "code", None))


# As Triton prints its codes in the reasons of the index.
_CODE_NAMES = {
    Code.UNKNOWN: "Unknown",
    Code.INTERNAL: "Internal",
    Code.NOT_FOUND: "Not found",
    Code.INVALID_ARG: "Invalid argument",
    Code.UNAVAILABLE: "Unavailable",
    Code.UNSUPPORTED: "Unsupported",
    Code.ALREADY_EXISTS: "Already exists",
    Code.CANCELLED: "Cancelled",
}


class LoadLog:
    """The log lines of one load; its duration is measured from the construction."""

    def __init__(self, model: ModelId) -> None:
        self._model = model
        self._started = monotonic()

    def loading(self, versions: Iterable[int]) -> None:
        """Log that versions are being started."""
        for version in versions:
            _log.info("loading: %s:%d", self._model, version)

    def loaded(self, versions: Iterable[int], kept: Iterable[int]) -> None:
        """Log that versions are served, and which of them were kept unchanged."""
        unchanged = _joined(kept)
        _log.info(
            "successfully loaded '%s' version %s in %.3f s%s",
            self._model,
            _joined(versions),
            monotonic() - self._started,
            f"; version {unchanged} unchanged" if unchanged else "",
        )

    def rearranged(self, versions: Iterable[int]) -> None:
        """Log that the instances of versions were changed."""
        seconds = monotonic() - self._started
        _log.info("rearranged the instances of '%s' version %s in %.3f s", self._model, _joined(versions), seconds)

    def failed(self, failures: Mapping[int, ConchError], *, still_served: bool, stopped: Collection[int] = ()) -> None:
        """Log why versions could not be started, whether the previous ones stay in service, and which were stopped."""
        for version, error in sorted(failures.items()):
            _log.error("failed to load '%s' version %d: %s: %s", self._model, version, code_name(error), error.message)
        consequence = "; the previous versions stay in service" if still_served else ""
        if stopped:
            consequence = f"; version {_joined(stopped)} is not served either: fix or remove what failed"
        _log.info("failed to load '%s' after %.3f s%s", self._model, monotonic() - self._started, consequence)


def replaced(model: ModelId, served: Iterable[int], previous: Iterable[int]) -> None:
    """Log the end of a reload, after the lines of the previous versions that were unloaded."""
    _log.info("serving '%s' version %s; unloaded the previous version %s", model, _joined(served), _joined(previous))


def _joined(versions: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(versions)))


def model_table(rows: Sequence[IndexEntry]) -> str:
    """Return the table of models in the log at start, as in Triton, without a final newline. Reasons are wrapped."""
    cells = [((row.name,), (row.version,), _status(row)) for row in rows]
    columns = zip(*[((heading,) for heading in _HEADINGS), *cells], strict=True)
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    lines = [rule, _line(_HEADINGS, widths), rule]
    for cell in cells:
        lines += [_line(parts, widths) for parts in zip_longest(*cell, fillvalue="")]
    lines.append(rule)
    return "\n".join(lines)


def _status(row: IndexEntry) -> tuple[str, ...]:
    text = f"{row.state}: {row.reason}" if row.reason else row.state
    return tuple(part for line in text.splitlines() for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    # Long words are not broken, so that paths and commands can be copied.
    return wrap(line, _STATUS_WIDTH, break_long_words=False, break_on_hyphens=False) or [""]


def _line(parts: Sequence[str], widths: Sequence[int]) -> str:
    padded = (f" {part:<{width}} " for part, width in zip(parts, widths, strict=True))
    return "|".join(["", *padded, ""])
