"""Hooks of MkDocs: the README is the first page, and links to files outside docs/ lead to the repository."""

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(\]\()(?!https?://|#|mailto:)([^)\s]+)(\))")


def on_files(files: Files, config: Any) -> Files:
    """Add the README as index.md."""
    files.append(File.generated(config, "index.md", content=(_ROOT / "README.md").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite the relative links of a page."""
    # Where the page stands in the repository: index.md is README.md at its top.
    folder = "" if page.file.src_uri == "index.md" else normpath(f"docs/{dirname(page.file.src_uri)}")

    def rewrite(match: re.Match[str]) -> str:
        path, _, anchor = match[2].partition("#")
        target = normpath(f"{folder}/{path}").lstrip("/") if folder else normpath(path)
        if target.startswith("docs/"):
            inside = target.removeprefix("docs/")
            link = inside if not folder else match[2].partition("#")[0]
        elif target == "README.md":
            link = "../" * page.file.src_uri.count("/") + "index.md"
        else:
            link = f"{config.repo_url}/blob/main/{target}"
        return f"{match[1]}{link}{'#' + anchor if anchor else ''}{match[3]}"

    return _LINK.sub(rewrite, markdown)
