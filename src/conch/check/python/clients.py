"""Check Python clients of Triton: how they measure time."""

import ast
from collections.abc import Iterator

from conch.check.finding import Finding
from conch.check.python.file import Function, PythonFile

CLIENT_MODULE = "tritonclient"
_CLOCKS = ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "monotonic_ns", "now")
_SUBMISSIONS = ("async_infer", "async_stream_infer", "stream_infer")
_WAITS = ("get_result", "get", "wait", "join", "result", "stop_stream", "acquire", "gather", "as_completed", "sleep")


def check_timing(file: PythonFile) -> Iterator[Finding]:
    """Find a submission between two clock readings, without a wait for the result before the second."""
    for function in (each for each in file.nodes if isinstance(each, Function | ast.Module)):
        submitted: ast.Call | None = None
        clocked = False
        for kind, node in sorted(_events(function), key=lambda each: (each[1].lineno, each[1].col_offset)):
            if kind == "clock":
                if submitted is not None:
                    name = submitted.func.attr if isinstance(submitted.func, ast.Attribute) else ""
                    message = f"the clock stops when {name} returns, before the response arrives"
                    yield Finding("client-timing", file.place(submitted), message)
                clocked, submitted = True, None
            elif kind == "submission" and clocked:
                submitted = node
            elif kind == "wait":
                submitted = None


def _events(node: ast.AST, inside: bool = False) -> Iterator[tuple[str, ast.Call]]:
    """Yield clock readings, submissions and waits of a function itself, not of functions inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda | ast.ClassDef):
            continue
        awaited = inside or isinstance(child, ast.Await)
        if isinstance(child, ast.Call):
            name = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
            if name in _CLOCKS and not child.args:
                yield "clock", child
            elif name in _SUBMISSIONS and not isinstance(node, ast.Await):
                yield "submission", child
            elif name in _WAITS or isinstance(node, ast.Await):
                yield "wait", child
        elif isinstance(child, ast.AsyncFor | ast.For) and isinstance(child.iter, ast.Name):
            yield "wait", _at(child)
        elif isinstance(child, ast.AsyncFor):
            yield "wait", _after(child)
        yield from _events(child, awaited)


def _at(node: ast.For | ast.AsyncFor) -> ast.Call:
    """Return a node at the place of a loop."""
    return ast.Call(func=node.iter, args=[], keywords=[], lineno=node.lineno, col_offset=node.col_offset)


def _after(node: ast.AsyncFor) -> ast.Call:
    """Return a node after the head of a loop: iterating over `stream_infer(…)` waits for its responses."""
    end = node.iter
    return ast.Call(
        func=node.iter,
        args=[],
        keywords=[],
        lineno=end.end_lineno or end.lineno,
        col_offset=(end.end_col_offset or 0) + 1,
    )
