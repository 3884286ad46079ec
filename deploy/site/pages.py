"""Hooks of MkDocs: the README is the first page, and links to files outside docs/ lead to the repository.

Programs read the pages as Markdown, beside the HTML, and find them by llms.txt (https://llmstxt.org).
"""

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parents[2]
_CSS = """\
/* Tables of code on a phone: names break after their punctuation only, so that a table may be wider than the page. */
.md-typeset td code { word-break: normal; overflow-wrap: normal; }
"""
_LINK = re.compile(r"(\]\()(?!https?://|#|mailto:)([^)\s]+)(\))")
_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_CODE = re.compile(r"(?<=<code>)[^<]*(?=</code>)")


def on_files(files: Files, config: Any) -> Files:
    """Add the README as index.md, and the style sheet."""
    files.append(File.generated(config, "site.css", content=_CSS))
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
            link = f"{config.extra['repository']}/blob/main/{target}"
        return f"{match[1]}{link}{'#' + anchor if anchor else ''}{match[3]}"

    markdown = _LINK.sub(rewrite, markdown)
    # GitHub wants the bar escaped also in code, of which Python-Markdown would show the backslash.
    return _ROW.sub(lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Let long names in tables break after punctuation."""
    return re.sub(r"<td.*?</td>", lambda cell: _CODE.sub(_breakable, cell[0]), html, flags=re.DOTALL)


def _breakable(code: re.Match[str]) -> str:
    return re.sub(r"(?<=[\w\]}>])([_./=:,|-])(?=\w|\{|&lt;)", r"\1<wbr>", code[0])


def on_post_build(config: Any) -> None:
    """Write each page as Markdown beside its HTML, and their list, llms.txt."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for section in config.nav:
        ((title, entries),) = section.items()
        lines += ["", f"## {title}", ""]
        for name in [entries] if isinstance(entries, str) else entries:
            text = (_ROOT / ("README.md" if name == "index.md" else f"docs/{name}")).read_text(encoding="utf-8")
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text, encoding="utf-8")
            heading = text.partition("\n")[0].lstrip("# ")
            lines.append(f"- [{heading}]({config.site_url}{name})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
