"""The reference page of all rules, `docs/check.md`."""

from conch.check.finding import Rule
from conch.check.rules.catalog import FAMILIES

_PAGE = """\
# `conch check`

    conch check PATH…

looks at model repositories without starting them: no process, no port, no framework. PATH is a repository, a model's
folder, or a folder that holds repositories, scripts and charts. Configurations are read by the server's own code, so
what the server would refuse is an error here, in the same words and with line and column. Python models are parsed and
never run. Exit status: 0 clean, 1 errors (with `--strict` warnings, too), 2 a wrong command line.

| Option | Meaning |
|---|---|
| `--fix` | mend what can be mended safely, show the changes as a diff |
| `--json` | findings for programs: rule, severity, file, line, column, message, why, cure, fixable, related |
| `--strict` | warnings count as errors in the exit status |
| `--rule ID` | only this rule; repeatable |
| `--ignore ID` | all rules but this; repeatable |

Ids are stable. An error fails when the model is loaded or used, a warning probably does something else than was meant,
a notice is for information.
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_PAGE]
    for family, rules in FAMILIES.items():
        parts.append(
            f"## {family}\n\n| Rule | | What is wrong | What comes of it | What to do |\n|---|---|---|---|---|"
        )
        parts += [_row(rule) for rule in rules]
        parts.append("")
    return "\n".join(parts)


def _row(rule: Rule) -> str:
    cells = (f"`{rule.id}`", rule.severity.value, f"{rule.title}.", rule.why, rule.cure)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(reference(), end="")
