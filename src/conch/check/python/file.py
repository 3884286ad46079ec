"""A parsed Python file: its syntax tree, uses of Triton's module, the model's class and functions. It is never run."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from conch.check.finding import Place
from conch.check.source import SourceFile

API_MODULE = "triton_python_backend_utils"
MODEL_CLASS = "TritonPythonModel"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class PythonFile:
    """One file. `parents` has the parent of each node, `stores` the assignments to a name in a scope."""

    source: SourceFile
    tree: ast.Module
    nodes: tuple[ast.AST, ...]  # of the tree, outer ones first
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    stores: dict[tuple[ast.AST, str], list[ast.Name]] = field(default_factory=dict)
    modules: frozenset[str] = frozenset()  # local names of Triton's module
    names: dict[str, str] = field(default_factory=dict)  # local names of its members → names in the module

    @classmethod
    def parse(cls, source: SourceFile) -> "PythonFile":
        """Parse a file. Raises SyntaxError."""
        tree = ast.parse(source.text, str(source.path))
        nodes = tuple(ast.walk(tree))
        parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        modules = {
            alias.asname or alias.name
            for node in nodes
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == API_MODULE
        }
        names = {
            alias.asname or alias.name: alias.name
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module == API_MODULE
            for alias in node.names
        }
        file = cls(source, tree, nodes, parents, {}, frozenset(modules), names)
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                for outer in file.around(node):
                    if isinstance(outer, Function | ast.Module):
                        file.stores.setdefault((outer, node.id), []).append(node)
        return file

    def place(self, node: ast.AST) -> Place:
        """Return the place of the beginning of a node."""
        return Place(self.source.path, getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1)

    def api(self, node: ast.AST | None) -> str:
        """Return the name that an expression has in Triton's module: `pb_utils.Tensor` → "Tensor"; "" if none."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.modules:
            return node.attr
        return self.names.get(node.id, "") if isinstance(node, ast.Name) else ""

    def calls_of(self, name: str) -> Iterator[ast.Call]:
        """Yield the calls of a function or class of Triton's module."""
        for node in self.nodes:
            if isinstance(node, ast.Call) and self.api(node.func) == name:
                yield node

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the ancestors of a node, innermost first."""
        while (outer := self.parents.get(node)) is not None:
            yield outer
            node = outer

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node."""
        return next((outer for outer in self.around(node) if isinstance(outer, Function)), None)

    @property
    def model_class(self) -> ast.ClassDef | None:
        """The class TritonPythonModel, if this file defines it."""
        classes = (node for node in self.tree.body if isinstance(node, ast.ClassDef))
        return next((node for node in classes if node.name == MODEL_CLASS), None)

    def method(self, name: str) -> Function | None:
        """Return a method of the model's class."""
        body = self.model_class.body if self.model_class else []
        return next((node for node in body if isinstance(node, Function) and node.name == name), None)

    def binds(self, name: str) -> bool:
        """Whether the module has a global of that name, or one could come from an `import *`."""
        for node in self.nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return True
            if isinstance(node, ast.ImportFrom | ast.Import):
                if any((alias.asname or alias.name) in (name, "*") for alias in node.names):
                    return True
            elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                return True
        return False

    def imports(self, package: str) -> bool:
        """Whether the module imports a package, or names from it."""
        return any(
            package in (getattr(node, "module", ""), *(alias.name for alias in node.names))
            for node in self.nodes
            if isinstance(node, ast.ImportFrom | ast.Import)
        )

    def value_of(self, node: ast.expr | None) -> ast.expr | None:
        """Resolve a name that is assigned exactly once in its function or module; else return the node."""
        for _ in range(8):
            if not isinstance(node, ast.Name):
                return node
            assigned = self._only_assignment(node.id, self.function_of(node) or self.tree)
            if assigned is None:
                return node
            node = assigned
        return node

    def _only_assignment(self, name: str, scope: ast.AST) -> ast.expr | None:
        stores = self.stores.get((scope, name), [])
        if not stores and scope is not self.tree:
            return self._only_assignment(name, self.tree)
        if len(stores) != 1:
            return None
        statement = self.parents[stores[0]]
        if isinstance(statement, ast.Assign) and statement.targets == [stores[0]]:
            return statement.value
        return statement.value if isinstance(statement, ast.AnnAssign) else None


def text_of(node: ast.AST | None) -> str | None:
    """Return the value of a string constant, None for other nodes."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """Return an argument of a call, by position or by name."""
    if len(call.args) > position and not any(isinstance(given, ast.Starred) for given in call.args[: position + 1]):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def siblings(path: Path) -> list[Path]:
    """Return the files that a model's file can import: those in the version's folder and in the model's folder."""
    return sorted({*path.parent.glob("*.py"), *path.parent.parent.glob("*.py")} - {path})
