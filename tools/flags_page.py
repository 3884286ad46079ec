"""Write the reference page of the flags of `conch serve`, `docs/reference/flags.md`: `python -m tools.flags_page`."""

from pathlib import Path

from conch.base.command_line.flags import Flag, Standing
from conch.server.commands.flag_help import grouped, usage, written
from conch.server.options.server_options import FLAGS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "flags.md"

_BEGINNING = """\
# Flags of `conch serve`

Triton's command line under Triton's names. `--flag=value` and `--flag value` mean the same; a flag that is not listed
here is an error. Every flag can be given as an environment variable too: `--http-port` is `CONCH_HTTP_PORT`. A flag on
the command line beats its variable; for a repeatable flag it replaces the variable's whole list, whose values are
separated by the character in parentheses.

In Kubernetes, a Service named `conch-http` would make pods see a variable `CONCH_HTTP_PORT` of another meaning; the
server refuses it by name. `enableServiceLinks: false` in the pod keeps such variables out.
"""


_IGNORED = """\
## Without effect

These flags of Triton tune what this server does not have. They are accepted, and the log says so.

| Flags | Reason |
|---|---|"""


def reference() -> str:
    """Return the reference page of all flags as Markdown."""
    parts = [_BEGINNING]
    for group, flags in grouped(flag for flag in FLAGS if flag.standing is not Standing.IGNORED):
        parts.append(f"## {group}\n\n| Flag | Default | Meaning |\n|---|---|---|")
        parts += [_row(flag) for flag in flags]
        parts.append("")
    parts.append(_IGNORED)
    reasons: dict[str, list[str]] = {}
    for flag in FLAGS:
        if flag.standing is Standing.IGNORED:
            reasons.setdefault(flag.reason, []).append(f"`--{flag.name}`")
    parts += [f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()]
    parts.append("")
    return "\n".join(parts)


def _row(flag: Flag) -> str:
    notes = [f"also `--{alias}`" for alias in flag.aliases]
    if flag.repeatable:
        notes.append(f"repeatable `{flag.separator}`")
    meaning = flag.help + (f" ({'; '.join(notes)})" if notes else "")
    default = f"`{written(flag.default)}`" if flag.default not in ("", ()) else ""
    # Outside of backticks, Markdown treats `<model>` as HTML.
    cells = (f"`{usage(flag)}`", default, meaning.replace("<", "&lt;"))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
