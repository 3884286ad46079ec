"""Write the reference page of all rules, `docs/check.md`: `python -m tools.check_page`."""

from pathlib import Path

from conch.check.finding import Rule, families

PAGE = Path(__file__).parents[1] / "docs" / "check.md"

_PAGE = """\
# Checks before a deployment: `conch check`

    conch check PATH…

checks model repositories and the files that deploy them, without starting a server: no process, no port, no framework.
PATH is a repository, a model's folder, a file, or a folder that contains repositories, scripts and charts; `-` is the
standard input. An error of a configuration has the server's message, with line and column. Python models are parsed and
never run.

| Option | Meaning |
|---|---|
| `--explain ID` | print what a rule finds, why, and the remedy; repeatable |
| `--fix` | fix findings that have a safe fix, and print the changes as a diff |
| `--format FORMAT` | `text`, `json`, `sarif` (2.1.0) or `github` (annotations of a workflow) |
| `--ignore ID` | skip this rule; repeatable |
| `--json` | print JSON: rule, severity, file, line, column, message, why, cure, fixable, related |
| `--kind KIND` | of the standard input: config, dockerfile, json, markdown, python, shell, systemd, terraform, yaml |
| `--output FILE` | write JSON, SARIF or annotations to a file |
| `--rule ID` | check only this rule; repeatable |
| `--strict` | treat warnings as errors in the exit status |

Ids are stable. An error fails when the model is loaded or used, a warning probably has an unintended effect, and a
notice is information. A comment `conch: ignore[ID]` in the line of a finding, or in the line above, suppresses it.

## What is checked

| Files | Needed beside the base install |
|---|---|
| config.pbtxt, versions, labels, model.py, clients in Python | |
| model files: ONNX, OpenVINO IR, TorchScript and exported programs, GGUF, safetensors, XGBoost, LightGBM | |
| command lines of the server in scripts, units of systemd, Dockerfiles, manifests and Markdown | |
| Dockerfiles, Terraform (read tolerantly, expressions are not evaluated), tunnels of ssh | |
| manifests of Kubernetes, compose files, Prometheus rules, monitors, autoscalers, dashboards, limits | `[monitoring]` |
| manifests against the schemas of Kubernetes | `[check]` |
| what a Helm chart renders, with its defaults or with a `*values*.yaml` beside them | `helm`, or `[charts]` (244 MB) |

Objects refer to each other: give their files in one command. What is absent may be deployed elsewhere and is not
reported. What was not checked gets a notice: for lack of a package, or because a file is not UTF-8 text of at most
4 MiB.

## In pre-commit, GitHub Actions and other CI

```yaml
# .pre-commit-config.yaml
repos:
  - repo: https://github.com/conch-server/conch
    rev: main
    hooks:
      - id: conch-check
```

```yaml
# .github/workflows/check.yml
on: [push, pull_request]
permissions: {contents: read, security-events: write}
jobs:
  check:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: conch-server/conch/deploy/check-action@main
        with: {paths: models deploy, strict: "true"}
```

The action annotates the changed files and uploads SARIF to code scanning. Elsewhere, `--format sarif --output FILE`
writes what GitLab, Azure DevOps and editors read.
"""


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_PAGE]
    for family, rules in families().items():
        parts.append(f"## {family}\n\n| Rule | Severity | Problem | Remedy |\n|---|---|---|---|")
        parts += [_row(rule) for rule in rules]
        parts.append("")
    return "\n".join(parts)


def _row(rule: Rule) -> str:
    cells = (f"`{rule.id}`", rule.severity.value, f"{rule.title}.", rule.cure)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
