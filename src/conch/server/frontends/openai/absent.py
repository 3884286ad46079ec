"""Errors of the OpenAI API for models that are not served."""

from collections.abc import Iterable
from itertools import islice

from conch.base.errors import ConchError, ModelLoading, NotFound, Unavailable
from conch.server.core.inference import Inference

_MAX_NAMES = 10


def absent(inference: Inference, name: str, error: ConchError, served: Iterable[str]) -> ConchError:
    """Return the error of a call for a model that is not served, from the core's `error`.

    `served` are the names of the models that the call could be for, as far as the client may know them.
    """
    state = inference.unserved(name)
    if isinstance(error, ModelLoading):
        return ModelLoading(state or error.message, retry_after_s=error.retry_after_s)
    if isinstance(error, Unavailable):
        return error
    if state:
        return NotFound(f"The model `{name}` is not served: {state}")
    return NotFound(f"The model `{name}` does not exist.{_listed(served)}")


def _listed(names: Iterable[str]) -> str:
    """Return which models there are, " …", or "" if they are unknown."""
    known = sorted(set(names))
    if not known:
        return ""
    shown = ", ".join(f"`{name}`" for name in islice(known, _MAX_NAMES))
    more = f" and {len(known) - _MAX_NAMES} others" if len(known) > _MAX_NAMES else ""
    return f" Served models: {shown}{more}."
