"""The house rules that a program can check: imports, names, no flag accepted and ignored, tests on slow machines."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from tools.code_map import PAGE, page
from tools.compile_modules import compiled_modules

from conch.base import errors
from conch.server.options.server_options import OWN_FLAGS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "conch"
MODULES = sorted(SOURCE.rglob("*.py"))

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

# Optional packages and the one place that may import each.
OPTIONAL = {
    "onnxruntime": {"server/backends/onnxruntime/backend.py"},
    "openvino": {
        "server/backends/openvino/backend.py",
        "server/backends/child/conch_child/engine/openvino_genai/driver.py",
        "server/backends/child/conch_child/engine/openvino_genai/grammar_probe.py",
    },
    "cuda": {"server/backends/cuda_runtime.py"},
    "pynvml": {"machine/accelerators/vendors/nvml.py"},
    "tensorrt": {"server/backends/tensorrt/backend.py"},
    "torch": {
        "server/backends/pytorch/torch_script.py",
        "server/backends/child/conch_child/python/adapters/torch_model.py",
        "server/backends/child/conch_child/engine/tensorrtllm/driver.py",
        "server/backends/child/conch_child/engine/tensorrtllm/arguments.py",
    },
    "tensorrt_llm": {"server/backends/child/conch_child/engine/tensorrtllm/driver.py"},
    "treelite": {"server/backends/fil/forest.py"},
    "grpc": {"machine/accelerators/kubelet.py", "clients/triton_stream.py"},
    "huggingface_hub": {"clients/repository/hub_download.py"},
    "obstore": {"server/repository/remote/object_store.py"},
    "yaml": {
        "base/yaml_documents.py",
        "server/backends/child/conch_child/engine/tensorrtllm/arguments.py",
    },
    "helm_python": {"base/helm.py"},
    "jsonschema": {"check/deployment/schema.py"},
    "kubernetes_validate": {"check/deployment/schema.py"},
    "promql_parser": {"operate/monitoring/promql.py"},
    "grafana_foundation_sdk": {"operate/monitoring/dashboards/grafana.py"},
    "urllib3": {"base/http/client.py"},
    "zstandard": {"base/archives.py"},
    "PIL": {
        "server/backends/child/conch_child/engine/images.py",
        "measure/bench/inputs/image_files.py",
        "server/backends/child/conch_child/python/app/kinds.py",
    },
    "redis": {"server/core/redis_store.py"},
    "tokenizers": {"domain/llm/text_model.py"},
}

# Options that are read through a method or a property of ServerOptions.
READ_AS = {
    "backend_config": "backend_settings",
    "metrics_config": "metrics",
    "cache_config": "cache_bytes",
    "host_policy": "policy_cores",
    "min_supported_compute_capability": "min_compute_capability",
    "response_cache_byte_size": "cache_bytes",
}


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(SOURCE).as_posix() for path in paths]


def test_arrows_point_down() -> None:
    script = (
        "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports within functions and those for type checkers count, too."""
    modules = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in MODULES}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                for imported in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if imported in modules:
                        sorter.add(name, imported)
    assert sum(1 for _ in sorter.static_order()) > len(modules) / 2


def test_public_methods_have_docstrings_unless_they_override() -> None:
    classes = [
        (path, node)
        for path in MODULES
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    methods = defaultdict[str, set[str]](set)
    bases = defaultdict[str, set[str]](set)
    for _, node in classes:
        methods[node.name] |= {method.name for method in methods_of(node)}
        plain = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
        bases[node.name] |= {base.id for base in plain if isinstance(base, ast.Name)}

    def inherited(name: str) -> set[str]:
        return set[str]().union(*(methods[base] | inherited(base) for base in bases[name] - {name}))

    assert [
        f"{path.relative_to(ROOT)}:{method.lineno} {node.name}.{method.name}"
        for path, node in classes
        if not node.name.startswith("_")
        for method in methods_of(node)
        if not method.name.startswith("_")
        and ast.get_docstring(method) is None
        and method.name not in inherited(node.name)
    ] == []


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [method for method in node.body if isinstance(method, FUNCTIONS)]


def test_compiled_modules_define_no_function_within_a_function() -> None:
    """mypyc may store such a function among the variables it refers to: a cycle that keeps requests and their memory.

    It does so if both functions call one that is defined elsewhere, be it `len`. Lambdas are not stored.
    """
    modules = compiled_modules(ROOT / "src")
    assert modules
    nested = {
        f"{module}:{inner.lineno}"
        for module in modules
        for outer in ast.walk(ast.parse((ROOT / "src" / module).read_text()))
        for inner in ast.walk(outer)
        if isinstance(outer, FUNCTIONS) and isinstance(inner, FUNCTIONS) and inner is not outer
    }
    assert nested == set()


def test_compiled_modules_make_no_slice_objects() -> None:
    """Compiled code takes one for the index of bytes, and raises TypeError; `data[3:35]` is fine."""
    slices = {
        f"{module}:{node.lineno}"
        for module in compiled_modules(ROOT / "src")
        for node in ast.walk(ast.parse((ROOT / "src" / module).read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "slice"
    }
    assert slices == set()


def test_errors_are_not_compiled() -> None:
    """An error travels by its `__dict__`, which has no attribute that a compiled class declares."""
    known = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    compiled = {
        f"{module}:{node.name}"
        for module in compiled_modules(ROOT / "src")
        for node in ast.walk(ast.parse((ROOT / "src" / module).read_text()))
        if isinstance(node, ast.ClassDef) and known & {ast.unparse(base) for base in node.bases}
    }
    assert compiled == set()


def test_modules_are_named_for_what_they_hold() -> None:
    assert names([path for path in MODULES if path.stem in {"utils", "util", "helpers", "common", "misc"}]) == []


def test_an_optional_package_is_imported_in_one_place() -> None:
    for package, places in OPTIONAL.items():
        pattern = re.compile(rf"^\s*(?:import|from) {package}\b", re.MULTILINE)
        importing = {
            name for path, name in zip(MODULES, names(MODULES), strict=True) if pattern.search(path.read_text())
        }
        assert importing == places


MIN_LIMIT_S = 30


def strict_limits(source: str) -> list[int]:
    """Return the lines of waits with a limit that a busy machine exceeds, and of bounds on elapsed time."""
    lines: list[int] = []
    if not re.search(r"timeout=\d|asyncio\.(timeout|wait_for)\(|(monotonic|perf_counter)(_ns)?\(\) - ", source):
        return lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            limits = [keyword.value for keyword in node.keywords if keyword.arg == "timeout"]
            waits = isinstance(node.func, ast.Attribute) and node.func.attr in ("timeout", "wait_for")
            if waits and ast.unparse(node.func).startswith("asyncio."):
                limits += node.args[-1:]
            values = [limit.value for limit in limits if isinstance(limit, ast.Constant)]
            if any(isinstance(value, int | float) and 0 < value < MIN_LIMIT_S for value in values):
                lines.append(node.lineno)
        elif isinstance(node, ast.Assert):
            for compared in ast.walk(node.test):
                bounded = isinstance(compared, ast.Compare) and isinstance(compared.ops[0], ast.Lt | ast.LtE)
                if bounded and re.search(r"(monotonic|perf_counter)(_ns)?\(\) - ", ast.unparse(compared.left)):
                    lines.append(node.lineno)
    return lines


def test_tests_allow_for_a_busy_machine() -> None:
    """A wait that succeeds costs nothing by its limit, and `process_time` measures work on a busy machine, too."""
    assert strict_limits("assert monotonic() - began < 5\nasync with asyncio.timeout(5): q.get(timeout=2)") == [1, 2, 2]
    paths = sorted((ROOT / "tests").rglob("*.py"))
    assert [f"{path}:{line}" for path in paths for line in strict_limits(path.read_text())] == []


def test_every_flag_that_is_said_to_be_supported_is_read_somewhere() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in MODULES if path.name != "server_options.py")
    words = {flag.name: READ_AS.get(flag.attribute, flag.attribute) for flag in OWN_FLAGS}
    assert [name for name, word in words.items() if not re.search(rf"options\.{word}\b", text)] == []


def test_the_code_map_lists_every_module() -> None:
    assert PAGE.read_text() == page(), "run make docs"


# A path relative to the root of the project, of the package or of the children's code; `path.py:Name` is defined there.
_PATH = re.compile(r"`((?:[\w.]+/)*[\w.]+\.py|(?:[\w.]+/)+[\w.]+)(?::(\w+))?`")


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_pages_name_modules_that_exist(name: str) -> None:
    for path, symbol in _PATH.findall((ROOT / name).read_text()):
        bases = (ROOT, ROOT / "src", SOURCE, SOURCE / "server" / "backends" / "child")
        places = [base / path for base in bases if (base / path).exists()]
        assert places, f"{path} does not exist"
        definition = rf"^(class|def) {symbol}\b"
        assert not symbol or re.search(definition, places[0].read_text(), re.MULTILINE), f"{path}:{symbol}"


def test_messages_name_pages_that_exist() -> None:
    pages = {page for path in MODULES for page in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))}
    assert [page for page in sorted(pages) if not (ROOT / page).is_file()] == []
