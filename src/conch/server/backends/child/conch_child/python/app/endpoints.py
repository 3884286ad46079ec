"""The models that a Python file declares: their inputs, outputs and Triton configurations."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import importlib.util
import inspect
import json
import os
import sys
import textwrap
import types
import typing
from typing import Any, Callable, Dict, List, Optional, Tuple

from ..source_import import add_source_folder, import_source
from . import declare
from .kinds import SUPPORTED, TensorKind, kind_of

OUTPUT = "output"
PREPROCESS, POSTPROCESS, DEFAULT_METHOD = "preprocess", "postprocess", "predict"
# Parameters of the configuration: the tensors that `generate` takes and returns as JSON or lists, and a body of
# `generate` that the model accepts, which clients show.
JSON_PARAMETER, EXAMPLE_PARAMETER = "json_tensors", "example_request"
_STREAMS = (collections.abc.Iterator, collections.abc.Iterable, collections.abc.Generator)
_ASYNC_STREAMS = (collections.abc.AsyncIterator, collections.abc.AsyncIterable, collections.abc.AsyncGenerator)


class DeclarationError(Exception):
    """A model that cannot be served as it is declared. The message has the line and a correct one."""


@dataclasses.dataclass
class DeclaredModel:
    """One model: a function, or a method of a class.

    `outputs` has the kinds by name; a result is a mapping or object with these, a tuple in their order, or, with
    `single_output`, the value itself.
    """

    name: str
    function: Callable[..., Any]
    owner: Optional[type]
    declaration: Dict[str, Any]
    inputs: Dict[str, TensorKind]
    optional: List[str]
    outputs: Dict[str, TensorKind]
    single_output: bool
    streams: bool
    is_async: bool
    batch: bool
    preprocesses: bool = False
    postprocesses: bool = False

    def config(self) -> Dict[str, Any]:
        """Return the model's configuration as JSON values."""
        declaration = self.declaration
        kind = "KIND_GPU" if declaration["gpu"] else "KIND_CPU"
        document: Dict[str, Any] = {
            "backend": "python",
            "max_batch_size": declaration["max_batch_size"] if self.batch else 0,
            "input": [{**_tensor(name, kind), "optional": name in self.optional} for name, kind in self.inputs.items()],
            "output": [_tensor(name, kind) for name, kind in self.outputs.items()],
            "instance_group": [{"count": declaration["instances"], "kind": kind}],
        }
        if self.batch:
            document["dynamic_batching"] = {"max_queue_delay_microseconds": declaration["batch_delay_us"]}
        if self.streams:
            document["model_transaction_policy"] = {"decoupled": True}
        structured = [
            name
            for name, kind in [*self.inputs.items(), *self.outputs.items()]
            if kind.is_json or (kind.is_array and len(kind.shape) + self.batch > 1)
        ]
        if not self.batch:
            structured += [name + "[]" for name, kind in self.outputs.items() if kind.is_array or kind.item]
        parameters = {JSON_PARAMETER: ",".join(structured)} if structured else {}
        sent = [name for name in self.inputs if name not in self.optional] or list(self.inputs)[:1]
        example = {name: self.inputs[name].example for name in sent}
        if None not in example.values():
            parameters[EXAMPLE_PARAMETER] = json.dumps(example)
        own = declaration["config"].get("parameters", {})
        document["parameters"] = {**{name: {"string_value": text} for name, text in parameters.items()}, **own}
        return {**document, **declaration["config"], "parameters": document["parameters"]}


def _tensor(name: str, kind: TensorKind) -> Dict[str, Any]:
    datatype = "STRING" if kind.datatype == "BYTES" else kind.datatype
    return {"name": name, "data_type": "TYPE_" + datatype, "dims": kind.shape}


def import_app(path: str) -> types.ModuleType:
    """Import a Python file as a module named after it, with its folder on the path. Raises what the import raises."""
    path = os.path.realpath(path)
    folder, name = os.path.dirname(path), os.path.basename(path)[: -len(".py")]  # noqa: PTH119, PTH120
    add_source_folder(folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    provide_declarations()
    if name in sys.modules:  # of the standard library, or a package
        name = "conch_app_" + name
    return import_source(name, path)


def provide_declarations() -> None:
    """Let `import conch` work in an environment without it (`EXECUTION_ENV_PATH`)."""
    if "conch" not in sys.modules and importlib.util.find_spec("conch") is None:
        stand_in: Any = types.ModuleType("conch")
        for name in ("Image", "InvalidInput", "Tensor", "endpoint", "model"):
            setattr(stand_in, name, getattr(declare, name))
        stand_in.serve = lambda **_: None
        sys.modules["conch"] = stand_in


def declared_in(module: Any) -> List[Any]:
    """Return the declared functions and classes of a module, also those that it imports."""
    declared: List[Any] = []
    for value in vars(module).values():
        if declare.MODEL in getattr(value, "__dict__", ()) and not any(value is known for known in declared):
            declared.append(value)
    return declared


def endpoints_of(module: Any) -> Dict[str, DeclaredModel]:
    """Return the models of a module by name. Raises DeclarationError."""
    endpoints: Dict[str, DeclaredModel] = {}
    for target in declared_in(module):
        for endpoint in _of_target(target):
            if endpoint.name in endpoints:
                raise DeclarationError(
                    "{}: '{}' is the name of two models; give one of them another: @conch.model(name=\"…\")".format(
                        place_of(endpoint.function), endpoint.name
                    )
                )
            endpoints[endpoint.name] = endpoint
    if not endpoints:
        raise DeclarationError(
            "{}: declares no model; put @conch.model above a function or class".format(
                getattr(module, "__file__", module.__name__)
            )
        )
    return endpoints


def _of_target(target: Any) -> List[DeclaredModel]:
    declaration = getattr(target, declare.MODEL)
    if not isinstance(target, type):
        return [_endpoint(declaration["name"] or target.__name__, target, None, declaration)]
    name = declaration["name"] or target.__name__
    marked = [
        function
        for function in vars(target).values()
        if callable(function) and declare.ENDPOINT in getattr(function, "__dict__", ())
    ]
    if not marked:
        function = getattr(target, DEFAULT_METHOD, None)
        if function is None:
            raise DeclarationError(
                "{}: class '{}' has no method '{}'; write one, or put @conch.endpoint above its methods".format(
                    place_of(target), target.__name__, DEFAULT_METHOD
                )
            )
        return [_endpoint(name, function, target, declaration)]
    endpoints = []
    for function in marked:
        options = getattr(function, declare.ENDPOINT)
        own_name = options["name"] or "{}_{}".format(name, function.__name__)
        endpoints.append(_endpoint(own_name, function, target, {**declaration, **options}))
    return endpoints


def _endpoint(name: str, function: Any, owner: Optional[type], declaration: Dict[str, Any]) -> DeclaredModel:
    single = owner is not None and function.__name__ == DEFAULT_METHOD
    before = getattr(owner, PREPROCESS, None) if single else None
    after = getattr(owner, POSTPROCESS, None) if single else None
    batch = bool(declaration["batch"])
    for option in ("max_batch_size", "instances", "concurrency"):
        if not isinstance(declaration[option], int) or declaration[option] < 1:
            raise DeclarationError(
                "{}: {}={!r} of '{}' is not valid: it must be 1 or more".format(
                    place_of(owner or function), option, declaration[option], name
                )
            )
    asynchronous = inspect.isasyncgenfunction(function)
    streams = asynchronous or inspect.isgeneratorfunction(function)
    if streams and batch:
        raise DeclarationError(
            "{}: '{}' is a generator, which streams the responses of one request: leave out batch=True".format(
                place_of(function), name
            )
        )
    for step in (before, after):
        if inspect.iscoroutinefunction(step):
            raise DeclarationError("{}: '{}' cannot be async; '{}' can".format(place_of(step), step.__name__, name))
    inputs, optional = _inputs(before or function, owner is not None, batch and before is None)
    outputs, single_output = _outputs(after or function, streams and after is None, batch and after is None)
    return DeclaredModel(
        name=name,
        function=function,
        owner=owner,
        declaration=declaration,
        inputs=inputs,
        optional=optional,
        outputs=outputs,
        single_output=single_output,
        streams=streams,
        is_async=asynchronous or inspect.iscoroutinefunction(function),
        batch=batch,
        preprocesses=before is not None,
        postprocesses=after is not None,
    )


def _inputs(function: Any, is_method: bool, batch: bool) -> Tuple[Dict[str, TensorKind], List[str]]:
    hints = _hints(function)
    kinds: Dict[str, TensorKind] = {}
    optional = []
    for parameter in list(inspect.signature(function).parameters.values())[1 if is_method else 0 :]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise _error(function, parameter.name, "cannot be an input: name each input", "", "")
        kinds[parameter.name] = _kind(function, parameter.name, hints, batch)
        if parameter.default is not parameter.empty:
            optional.append(parameter.name)
    if not kinds:
        raise _error(function, "", "has no inputs", "x", "np.ndarray")
    return kinds, optional


def _outputs(function: Any, streams: bool, batch: bool) -> Tuple[Dict[str, TensorKind], bool]:
    hints = _hints(function)
    annotation = hints.get("return")
    if streams and annotation is not None:
        arguments = typing.get_args(annotation)
        if typing.get_origin(annotation) not in (*_STREAMS, *_ASYNC_STREAMS) or not arguments:
            stream = "AsyncIterator" if inspect.isasyncgenfunction(function) else "Iterator"
            raise _error(function, "return", "is a generator's", "return", "{}[str]".format(stream))
        annotation = arguments[0]
    fields = _fields_of(annotation)
    if fields is None:
        return {OUTPUT: _kind(function, "return", {**hints, "return": annotation}, batch)}, True
    hints = dict(fields)
    return {name: _kind(function, "return", hints, batch, name) for name in fields}, False


def _fields_of(annotation: Any) -> Optional[Dict[str, Any]]:
    """Return the annotations of several outputs by name: of a TypedDict, dataclass, NamedTuple or tuple; else None."""
    if typing.get_origin(annotation) is tuple:
        arguments = [argument for argument in typing.get_args(annotation) if argument is not Ellipsis]
        return {"{}_{}".format(OUTPUT, index): argument for index, argument in enumerate(arguments)}
    if isinstance(annotation, type) and (
        dataclasses.is_dataclass(annotation) or hasattr(annotation, "__total__") or hasattr(annotation, "_fields")
    ):
        return _hints(annotation)
    return None


def _hints(annotated: Any) -> Dict[str, Any]:
    """Return the annotations. Raises DeclarationError if one cannot be evaluated."""
    options: Dict[str, Any] = {"include_extras": True} if sys.version_info >= (3, 9) else {}
    try:
        hints: Dict[str, Any] = typing.get_type_hints(annotated, **options)
    except Exception as error:  # an annotation is any expression
        raise DeclarationError(
            "{}: the annotations of '{}' cannot be evaluated: {}: {}".format(
                place_of(annotated), annotated.__name__, type(error).__name__, error
            )
        ) from None
    return hints


def _kind(function: Any, parameter: str, hints: Dict[str, Any], batch: bool, field: str = "") -> TensorKind:
    """Return the kind of a parameter or of the result. Raises DeclarationError with a correct line."""
    subject = field or parameter
    suggestion = "list[str]" if batch else "np.ndarray"
    if subject not in hints or hints[subject] is None:
        raise _error(function, parameter, "has no annotation", parameter, suggestion)
    try:
        kind = kind_of(_without_none(hints[subject]))
    except TypeError as error:
        raise _error(function, parameter, "cannot be a tensor: {}".format(error), parameter, suggestion) from None
    if not batch or kind.is_array:
        return kind
    if kind.item is None:
        name = getattr(hints[subject], "__name__", "str")
        text = "is of one item, but with batch=True the function has several at a time"
        raise _error(function, parameter, text, parameter, "list[{}]".format(name))
    kind.shape = [1]
    return kind


def _without_none(annotation: Any) -> Any:
    """Return X of Optional[X]."""
    arguments = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    is_union = typing.get_origin(annotation) in (typing.Union, getattr(types, "UnionType", None))
    return arguments[0] if is_union and len(arguments) == 1 else annotation


def place_of(annotated: Any) -> str:
    """Return `file:line` of a function or class."""
    try:
        target = inspect.unwrap(annotated) if callable(annotated) else annotated
        return "{}:{}".format(inspect.getsourcefile(target), inspect.getsourcelines(target)[1])
    except (OSError, TypeError):
        return getattr(annotated, "__module__", "?")


def _error(function: Any, parameter: str, problem: str, changed: str, suggestion: str) -> DeclarationError:
    """Return an error with the line of a parameter, and the line as it would be right."""
    subject = {"": "", "return": "the result of "}.get(parameter, "parameter '{}' of ".format(parameter))
    text = "{}'{}' {}".format(subject, function.__name__, problem)
    try:
        lines, first = inspect.getsourcelines(function)
        node: Any = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return DeclarationError("{}: {}".format(place_of(function), text))
    arguments = {argument.arg: argument for argument in [*node.args.args, *node.args.kwonlyargs]}
    for argument in (node.args.vararg, node.args.kwarg):
        if argument is not None:
            arguments[argument.arg] = argument
    number = arguments[parameter].lineno if parameter in arguments else node.lineno
    text = "{}:{}: {}\n    {}".format(
        inspect.getsourcefile(function), first + number - 1, text, lines[number - 1].strip()
    )
    if suggestion and sys.version_info >= (3, 9):
        annotation = ast.parse(suggestion, mode="eval").body
        if changed == "return":
            node.returns = annotation
        elif changed in arguments:
            arguments[changed].annotation = annotation
        else:
            node.args.args.append(ast.arg(changed, annotation))
        node.body, node.decorator_list = [], []
        text += "\ncorrect is, for example:\n    {}".format(ast.unparse(ast.fix_missing_locations(node)))
    return DeclarationError("{}\nA tensor can be: {}".format(text, SUPPORTED))
