"""The mistakes of five articles about serving are found in fragments of their text: rule, place and remedy.

The folders are the articles: a LLM course's (s0), an interview answer's (s1), a cloud blueprint's (s2), a detection
pipeline's (s3). Line ends and indentation, which the articles lost, are restored. One mistake is arithmetic in prose
and has no rule: the number of requests.
"""

from pathlib import Path

import pytest

from conch.check.check_paths import check_paths
from conch.check.finding import Finding
from tests.unit.check.repository import findings_of, write

ARTICLES = Path(__file__).parent / "articles"
# Number of the mistake, file, rule, line, part of the message, part of the remedy.
MISTAKES = [
    (1, "s1/rules.yaml", "alert-never-fires", 8, "label_replace sets 'model' to the value of", "conch rules prove"),
    (1, "s1/rules.yaml", "alert-never-fires", 9, "no metric is named 'kube_annotations'", "conch rules prove"),
    (2, "s3/hpa.yaml", "autoscaler-counter", 16, "'nv_inference_request_success', a counter", "queue_compute:ratio"),
    (3, "s0/monitor.yaml", "monitor-selects-nothing", 15, "'gpu-dcgm-exporter' has no labels", "Add the labels"),
    (4, "s3/init.yaml", "init-container-scratch", 10, "runs cp to copy /models", "image:` volume source"),
    (4, "s3/Dockerfile", "image-scratch", 1, "contains only /models/", "init container"),
    (5, "s3/models/preprocess/config.pbtxt", "config-syntax", 12, "not a list", "conch check --fix"),
    (6, "s2/triton_client.py", "client-timing", 11, "before the response arrives", "conch bench"),
    (7, "s2/main.tf", "shm-variable", 16, "shm-size", "emptyDir"),
    (8, "s2/main.tf", "image-tag", 14, "24.02-vllm-python-py3", "same tag"),
    (9, "s0/tunnel.sh", "tunnel-public", 3, "0.0.0.0:9400", "127.0.0.1"),
    (10, "s3/models/preprocess/1/model.py", "python-batch-axis", 25, "[batch, 3, 640, 640]", "stack the arrays"),
    (10, "s3/models/postprocess/1/model.py", "python-batch-nms", 19, "of a whole request", "each item"),
    (10, "s3/models/postprocess/1/model.py", "python-class-count", 27, "2 class names for 80", "label file"),
    (10, "s3/models/preprocess/1/model.py", "python-image-limit", 18, "of any size", "refuse images"),
    (11, "s1/serve.sh", "flag-value", 1, "custom_metrics.so", "custom_metrics=FILE.yaml"),
    (11, "s1/custom_metrics.py", "python-metric-class", 3, "class QpsGauge", "In initialize"),
    (12, "s3/init.yaml", "flag-unknown", 17, "--cpu-only", "KIND_CPU"),
    (13, "s1/models/llm/1/model.py", "python-gauge-constant", 8, "self.gauge.set(1)", "increment(-1)"),
    (14, "s1/rules.yaml", "query-no-data", 3, "'my_qps_threshold', a gauge", "avg_over_time"),
]
# Others that stand beside them.
BESIDE = [
    ("s0/triton.yaml", "gpu-unlimited", 21),
    ("s1/rules.yaml", "alert-wrong", 9),
    ("s2/main.tf", "terraform-disabled", 5),
    ("s3/Dockerfile", "config-elsewhere", 3),
    ("s3/docker-compose.yml", "config-elsewhere", 11),
    ("s3/docker-compose.yml", "compose-gpu", 20),
    ("s3/models/preprocess/config.pbtxt", "config-invalid", 2),
    ("s3/models/postprocess/config.pbtxt", "config-invalid", 2),
    ("s3/models/preprocess/1/model.py", "python-first-item", 15),
    ("s3/models/preprocess/1/model.py", "python-batch-axis", 26),
    ("s3/models/postprocess/1/model.py", "python-first-item", 17),
    ("s3/models/postprocess/1/model.py", "python-batch-axis", 30),
]


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    return [finding for article in sorted(ARTICLES.iterdir()) for finding in check_paths([article]).findings]


def where(finding: Finding) -> str:
    return finding.place.path.relative_to(ARTICLES).as_posix()


@pytest.mark.parametrize(
    ("file", "rule", "line", "message", "remedy"),
    [row[1:] for row in MISTAKES],
    ids=[f"{r[0]}-{r[2]}" for r in MISTAKES],
)
def test_a_mistake(findings: list[Finding], file: str, rule: str, line: int, message: str, remedy: str) -> None:
    at = [
        finding for finding in findings if (where(finding), finding.rule.id, finding.place.line) == (file, rule, line)
    ]
    assert any(message in finding.message and remedy in finding.what_to_do for finding in at), [
        (finding.rule.id, finding.place.line, finding.message) for finding in findings if where(finding) == file
    ]


def test_every_other_finding_is_meant(findings: list[Finding]) -> None:
    expected = {(row[1], row[2], row[3]) for row in MISTAKES} | set(BESIDE)
    # These depend on what is installed.
    missing = "python-import", "backend-not-installed", "chart-unrendered", "schema-unchecked"
    assert {
        (where(finding), finding.rule.id, finding.place.line) for finding in findings if finding.rule.id not in missing
    } == expected


def test_a_single_file_of_an_article() -> None:
    assert [finding.rule.id for finding in findings_of(ARTICLES / "s0" / "tunnel.sh")] == ["tunnel-public"]


def test_code_blocks_of_a_page(tmp_path: Path) -> None:
    code = (ARTICLES / "s2" / "main.tf").read_text()
    page = write(tmp_path / "page.md", f"The variable:\n\n- environment:\n- shm-size\n\n```hcl\n{code}```\n")
    assert [(finding.rule.id, finding.place.line) for finding in findings_of(page)] == [("shm-variable", 6 + 16)]


def test_a_page_whose_prose_names_another_image_than_its_code_block(tmp_path: Path) -> None:
    code = (ARTICLES / "s2" / "main.tf").read_text().replace("shm-size", "size")
    prose = (ARTICLES / "s2" / "README.md").read_text()
    page = write(tmp_path / "page.md", f"```hcl\n{code}```\n\n{prose}")
    (finding,) = findings_of(page)
    assert (finding.rule.id, finding.place.line) == ("image-tag", 1 + 14)
    assert finding.message.startswith("nvcr.io/nvidia/tritonserver:24.06-vllm-python-py3 is deployed, but the text")
    assert finding.what_to_do == "Use the same tag in both."
    (related,) = finding.related
    lines = page.read_text().split("\n")
    assert lines[related.place.line - 1][related.place.column - 1 :].startswith("24.02-vllm-python-py3")


def test_a_page_that_names_the_image_of_its_code_block_and_others(tmp_path: Path) -> None:
    code = "```yaml\nimage: nvcr.io/nvidia/tritonserver:24.06-py3\n```\n"
    text = "Replace `nvcr.io/nvidia/tritonserver:24.02-py3` by `nvcr.io/nvidia/tritonserver:24.06-py3`.\n"
    other = "```sh\ndocker run nvcr.io/nvidia/tritonserver:23.01-py3\n```\n"
    write(tmp_path / "page.md", text + code + other)
    assert findings_of(tmp_path) == []
