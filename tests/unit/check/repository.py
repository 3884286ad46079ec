"""Repositories with errors for tests, and the findings of the check."""

from pathlib import Path
from textwrap import dedent

from conch.check.check_paths import check_paths
from conch.check.finding import Finding

TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""

ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return responses
"""


def write(path: Path, text: str | bytes) -> Path:
    """Write a file and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else dedent(text).lstrip("\n").encode())
    return path


def write_python(root: Path, name: str, config: str = TENSORS, code: str = ECHO) -> Path:
    """Write a Python model; return its folder."""
    write(root / name / "1" / "model.py", code)
    return write(root / name / "config.pbtxt", f'backend: "python"\n{dedent(config).lstrip()}').parent


def findings_of(*paths: Path) -> list[Finding]:
    """What the check finds."""
    return list(check_paths(paths).findings)


def ids(*paths: Path) -> list[str]:
    """The rules that are broken, by file and line."""
    return [finding.rule.id for finding in findings_of(*paths)]


def only_finding(*paths: Path) -> Finding:
    """The only thing that the check finds."""
    (finding,) = findings_of(*paths)
    return finding
