"""Errors of failed loads, as clients and the log get them."""

from collections.abc import Mapping, Sequence
from logging import getLogger
from typing import TypeVar

from conch.base.errors import Code, ConchError, ModelLoadError, NotFound
from conch.server.repository.namespaces import ModelId

_log = getLogger(__name__)
_Error = TypeVar("_Error", bound=ConchError)


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
