"""Generate the reference page of all rules, `docs/check.md`."""

from conch.check.finding import Rule
from conch.check.rules.catalog import FAMILIES

_PAGE = """\
# `conch check`

    conch check PATH…

checks model repositories without starting a server: no process, no port, no framework. PATH is a repository, a model's
folder, or a folder that contains repositories, scripts and charts. The server's code reads the configurations, so an
error of the server is reported with the same message, and with line and column. Python models are parsed and never run.
The exit status is 0 without errors, 1 with errors (with `--strict` also with warnings), 2 for an invalid command line.

| Option | Meaning |
|---|---|
| `--fix` | fix findings that have a safe fix, and print the changes as a diff |
| `--json` | print JSON: rule, severity, file, line, column, message, why, cure, fixable, related |
| `--strict` | treat warnings as errors in the exit status |
| `--rule ID` | check only this rule; repeatable |
| `--ignore ID` | skip this rule; repeatable |

Ids are stable. An error fails when the model is loaded or used, a warning probably has an unintended effect, and a
notice is information.
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_PAGE]
    for family, rules in FAMILIES.items():
        parts.append(f"## {family}\n\n| Rule | Severity | Problem | Consequence | Remedy |\n|---|---|---|---|---|")
        parts += [_row(rule) for rule in rules]
        parts.append("")
    return "\n".join(parts)


def _row(rule: Rule) -> str:
    cells = (f"`{rule.id}`", rule.severity.value, f"{rule.title}.", rule.why, rule.cure)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(reference(), end="")
