"""Ten tasks of a newcomer: links lead from the README to what does each of them, in at most two clicks."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Task:
    """What a newcomer wants, the texts of the links to click, and what stands at the end: a command or a setting."""

    wish: str
    clicks: tuple[str, ...]
    end: str


TASKS = (
    Task("serve my model", ("`conch run`",), "conch run examples/models/digits/1/model.onnx"),
    Task("serve my Python function", ("models in Python",), "@conch.model"),
    Task("move from Triton", ("moving",), "## From Triton"),
    Task("know what works as in Triton", ("moving", "Compatibility"), "## HTTP"),
    Task("serve a pipeline", ("an image pipeline",), "conch.Image"),
    Task("chat with a language model", ("`conch run`",), 'conch run examples/models/chat "'),
    Task("use the OpenAI client", ("five minutes",), "base_url="),
    Task("stream tokens", ("five minutes",), "stream=True"),
    Task("call it from Python", ("`conch run`",), "import tritonclient.http as http"),
    Task("see why it is slow", ("troubleshooting",), "nv_inference_queue_duration_us"),
    Task("fill batches", ("questions",), "max_queue_delay_microseconds: 2000"),
    Task("measure it", ("`conch bench`",), "$ conch bench"),
    Task("limit a tenant", ("limits",), "tenant: acme"),
    Task("require keys", ("keys",), "--api-key-file="),
    Task("alert when it fails", ("metrics, alerts, dashboards", "Alerts"), "$ conch rules"),
    Task("deploy on Kubernetes", ("Kubernetes",), "$ helm install"),
)


def test_there_are_ten_tasks() -> None:
    assert len({task.wish for task in TASKS}) >= 10


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.wish.replace(" ", "-"))
def test_a_task_is_at_most_two_clicks_from_the_readme(task: Task) -> None:
    page = ROOT / "README.md"
    assert len(task.clicks) <= 2
    for click in task.clicks:
        page = _follow(page, click)
    assert task.end in page.read_text(), f"{page} does not say how to {task.wish}"


def _follow(page: Path, text: str) -> Path:
    """Return the file that a link leads to. Fails if the page has no link of this text."""
    links = dict(reversed(_LINK.findall(page.read_text())))  # the first of several
    assert text in links, f"{page} has no link '{text}' but {sorted(links)}"
    return (page.parent / links[text].partition("#")[0]).resolve(strict=True)
