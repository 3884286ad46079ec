"""Types of options that are names and labels of Kubernetes."""

import re
from argparse import ArgumentTypeError

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_MAX_NAME = 253  # characters


def object_name(text: str) -> str:
    """Return the name of an object. Raises ArgumentTypeError."""
    if len(text) > _MAX_NAME or not _SUBDOMAIN.fullmatch(text):
        raise ArgumentTypeError(f"'{text}' is not a valid name; use lower-case letters, digits, - and ., e.g. conch-a")
    return text


def namespace(text: str) -> str:
    """Return the name of a namespace. Raises ArgumentTypeError."""
    if not _NAMESPACE.fullmatch(text):
        message = f"'{text}' is not a valid namespace; use at most 63 lower-case letters, digits and -, e.g. monitoring"
        raise ArgumentTypeError(message)
    return text


def label(text: str) -> tuple[str, str]:
    """Return the name and the value of a label. Raises ArgumentTypeError."""
    name, equals, value = text.partition("=")
    if not equals or not _LABEL.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
        raise ArgumentTypeError(f"'{text}' is not a valid label NAME=VALUE, e.g. release=kps")
    return name, value
