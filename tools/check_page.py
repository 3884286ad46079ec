"""Write the reference page of all rules, `docs/check.md`: `python -m tools.check_page`."""

from pathlib import Path

from conch.check.rules import Rule, families

PAGE = Path(__file__).parents[1] / "docs" / "check.md"

_PAGE = """\
# `conch check`

    conch check PATH…

checks model repositories and the files that deploy them, without starting a server: no process, no port, no framework.
PATH is a repository, a model's folder, a file, or a folder that contains repositories, scripts and charts; `-` is the
standard input. The server's code reads the configurations, so an error of the server is reported with the same message,
and with line and column. Python models are parsed and never run. The exit status is 0 without errors, 1 with errors
(with `--strict` also with warnings), 2 for an invalid command line.

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
reported. If a package is missing, one notice says what was not checked and how to install the package; it does not
change the exit status. A file that is not a regular file of UTF-8 text of at most 4 MiB gets a notice, too.

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

_MISTAKES_HEAD = """\
## Common mistakes

Published articles about serving have these mistakes. In fragments of their texts, each is found and has a remedy,
except the last: which of a sentence's numbers are parts of a sum is nothing that a program can decide.

| Mistake | Rules |
|---|---|"""
# A mistake of published articles → the rules that find it.
MISTAKES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("An alert on a limit that `label_replace` joins parses, but never fires", ("alert-never-fires",)),
    ("An autoscaler on a counter scales up for ever", ("autoscaler-counter",)),
    ("A ServiceMonitor selects a Service that has no labels", ("monitor-selects-nothing",)),
    (
        "An init container runs `cp` of an image FROM scratch",
        ("init-container-scratch", "image-scratch"),
    ),
    ("`dynamic_batching [ { … } ]` is a list", ("config-syntax",)),
    ("A client measures how long it takes to send a request", ("client-timing",)),
    ("The size of the shared memory is an environment variable", ("shm-variable",)),
    (
        "The image's tag differs from the text, in another file or between a page's code blocks and its prose",
        ("image-tag",),
    ),
    ("A tunnel listens on 0.0.0.0", ("tunnel-public",)),
    (
        "A Python model drops the batch axis, mixes boxes of images, has 2 names for 80 classes, or no size limit",
        ("python-batch-axis", "python-batch-nms", "python-class-count", "python-image-limit"),
    ),
    ("A metric is a `.so` plug-in or a subclass of MetricFamily", ("flag-value", "python-metric-class")),
    (
        "A command has an invented flag such as `--cpu-only` (sentences, which may warn of it, are not reported)",
        ("flag-unknown",),
    ),
    ("A gauge is set to 1 as if that counted requests", ("python-gauge-constant",)),
    ("A query has the rate of `x_total`, but `x` is a gauge", ("query-no-data",)),
    ("The text claims 65 requests where 1 + 5 + 30 = 36 were sent; `conch bench` counts them", ()),
)


def reference() -> str:
    """Return the page as Markdown."""
    parts = [_PAGE, _MISTAKES_HEAD]
    parts += [f"| {mistake} | {', '.join(f'`{rule}`' for rule in rules)} |" for mistake, rules in MISTAKES]
    parts.append("")
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
