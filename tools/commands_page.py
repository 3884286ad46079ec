"""Write the pages of commands in docs/reference, `commands.md` and the cheat sheet: `python -m tools.commands_page`."""

from collections import Counter
from pathlib import Path

from conch.base.command_line.command_table import tasks
from tools import cheat_sheet

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"

_HEAD = """\
# Commands

`conch COMMAND --help` describes the flags of a command; those of `conch serve` are in [flags.md](flags.md). Commands
print results on stdout and problems on stderr; `--json`, where a command has it, prints one document for programs.
`NO_COLOR=1` disables colours.

Exit status, where a command lists no other: {statuses}; 141 the
reader of the output ended, such as `head`.

Completion: `conch completion bash > ~/.local/share/bash-completion/completions/conch`,
`conch completion zsh > "${fpath[1]}/_conch"`, `conch completion fish > ~/.config/fish/completions/conch.fish`.
"""


def page() -> str:
    """Return the page as Markdown."""
    [(usual, _)] = Counter(
        command.statuses for commands in tasks().values() for command in commands.values()
    ).most_common(1)
    parts = [_HEAD.replace("{statuses}", usual)]
    for task, commands in tasks().items():
        parts.append(f"## {task.capitalize()}\n")
        for name, command in commands.items():
            parts.append(f"### `conch {name}`\n\n{command.help[:1].upper()}{command.help[1:]}.\n")
            if command.examples:
                parts.append("\n".join(f"    {example}" for example in command.examples) + "\n")
            if command.statuses != usual:
                parts.append(f"Exit status: {command.statuses}.\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    cheat_sheet.PAGE.write_text(cheat_sheet.page(), encoding="utf-8")
