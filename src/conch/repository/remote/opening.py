"""From the text of a `--model-repository` to the root that it names."""

from pathlib import Path

from conch.repository.roots import LocalRoot, Root


def open_root(text: str, cache: str = "", *, most_bytes: int | None = None) -> Root:
    """Return what a `--model-repository` names. `cache` is `--repository-cache`, "" for the usual place.

    With `most_bytes`, larger files of a repository elsewhere are left there, empty ones stand for them.

    A relative path is resolved here, once: model processes and archives may run in other working directories.
    Looks at nothing yet. Raises ConfigError for a URL that names no repository.
    """
    if "://" not in text:
        return LocalRoot(Path(text).absolute())
    # Only who has a repository elsewhere pays for the clients.
    from conch.repository.remote.mirrors import open_mirror

    return open_mirror(text, cache, most_bytes=most_bytes)


def public_name(text: str) -> str:
    """Return a `--model-repository` as clients and logs may see it: without a password or a signature."""
    if "://" not in text:
        return text
    from conch.repository.remote.location import without_secrets

    return without_secrets(text)
