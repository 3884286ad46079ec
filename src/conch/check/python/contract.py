"""Check the contract of a Python model: its class, `execute` and what it returns, its inputs and outputs."""

import ast
from collections.abc import Iterator

from conch.check.finding import Finding, Related
from conch.check.models.checked_model import CheckedModel
from conch.check.python.arrays import datatype, rank
from conch.check.python.file import MODEL_CLASS, Function, PythonFile, argument, text_of
from conch.domain.model_config import ModelConfig, TensorSpec


def check_class(file: PythonFile) -> Iterator[Finding]:
    """Check that there is a TritonPythonModel with a method `execute(self, requests)`, or a file that imports conch."""
    model = file.model_class
    if model is None:
        if not file.binds(MODEL_CLASS) and not file.imports("conch"):
            message = f"{file.source.path.name} does not define a class {MODEL_CLASS}"
            yield Finding("python-class", file.place(file.tree), message)
        return
    execute = file.method("execute")
    if execute is None:
        assigned = any(
            isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "execute" for node in model.body
        )
        if not assigned and all(ast.unparse(base) == "object" for base in model.bases):
            yield Finding("python-execute", file.place(model), f"class {MODEL_CLASS} has no method 'execute'")
        return
    arguments = execute.args
    positional = [*arguments.posonlyargs, *arguments.args]
    static = any(ast.unparse(decorator) == "staticmethod" for decorator in execute.decorator_list)
    passed = 1 if static else 2
    required = len(positional) - len(arguments.defaults)
    if arguments.vararg is None and not required <= passed <= len(positional):
        message = f"execute takes {len(positional)} arguments; the server calls it with {passed}: self and requests"
        yield Finding("python-execute", file.place(execute), message)


def check_execute(file: PythonFile, model: CheckedModel) -> Iterator[Finding]:
    """Check what `execute` returns."""
    execute = file.method("execute")
    if execute is None or "set_model_transaction_policy" in file.source.text:
        return
    returns = [node for node in _own(execute) if isinstance(node, ast.Return)]
    values = [node for node in returns if node.value is not None and not _is_none(node.value)]
    sends = "get_response_sender" in file.source.text
    if model.config.decoupled:
        for node in values:
            message = "execute of a decoupled model returns a value; it must return None"
            yield Finding("python-return", file.place(node), message)
        return
    if not values and not sends and not _only_raises(execute):
        message = "execute returns nothing, and no response sender is used: no request gets a response"
        yield Finding("python-return", file.place(execute), message)
    for node in values:
        value = file.value_of(node.value)
        if isinstance(value, ast.Call) and file.api(value.func) == "InferenceResponse":
            message = "execute returns one InferenceResponse; it must return a list of them"
            yield Finding("python-return", file.place(node), message)
    if sends:
        attributes = (other for other in file.nodes if isinstance(other, ast.Attribute))
        sender = next((attribute for attribute in attributes if attribute.attr == "get_response_sender"), execute)
        message = f"model '{model.name}' uses a response sender, but its model_transaction_policy is not decoupled"
        yield Finding("python-sender", file.place(sender), message)
        return
    yield from _response_count(file, execute)


def _response_count(file: PythonFile, execute: Function) -> Iterator[Finding]:
    """Find paths through the loop over the requests that leave a request without a response."""
    positional = [*execute.args.posonlyargs, *execute.args.args]
    requests = positional[-1].arg if positional else "requests"
    for loop in (node for node in _own(execute) if isinstance(node, ast.For)):
        if requests not in {name.id for name in ast.walk(loop.iter) if isinstance(name, ast.Name)}:
            continue
        for node in _own(loop):
            if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
                message = "execute returns from inside its loop: the requests after this one get no response"
                yield Finding("python-response-count", file.place(node), message)
            elif isinstance(node, ast.Continue | ast.Break) and _leaves_unanswered(file, node, loop):
                word = "continue" if isinstance(node, ast.Continue) else "break"
                message = f"`{word}` leaves this request without a response"
                yield Finding("python-response-count", file.place(node), message)


def _leaves_unanswered(file: PythonFile, node: ast.AST, loop: ast.For) -> bool:
    """Whether no statement before this one in the loop adds a response."""
    if next(outer for outer in file.around(node) if isinstance(outer, ast.For | ast.While)) is not loop:
        return False
    while node is not loop:
        block = file.parents[node]
        for body in (getattr(block, name, []) for name in ("body", "orelse", "finalbody")):
            if node in body and any(
                _answers(inner) for statement in body[: body.index(node)] for inner in ast.walk(statement)
            ):
                return False
        node = block
    return True


def _answers(node: ast.AST) -> bool:
    """Whether a node stores a response: `responses.append(…)`, `responses[index] = …`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("append", "extend", "send")
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes inside a node, except those inside of nested functions and classes."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own(child)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _only_raises(function: Function) -> bool:
    return isinstance(function.body[-1], ast.Raise)


def check_tensors(file: PythonFile, model: CheckedModel) -> Iterator[Finding]:
    """Check names, datatypes and ranks, except of tensors that the model adds in `auto_complete_config`."""
    config = model.config
    completes = file.method("auto_complete_config")
    own = {text for node in ast.walk(completes) if (text := text_of(node))} if completes else set()
    yield from _inputs(file, model, config, own)
    outputs = list(_given(file))
    for call, name in outputs:
        spec = config.output(name)
        if spec is not None:
            yield from _output(file, model, config, spec, call)
        elif config.outputs and name not in own | _state_outputs(config):
            declared = ", ".join(output.name for output in config.outputs)
            message = f"output '{name}' is not declared in the configuration of model '{model.name}'"
            yield Finding("python-output", file.place(call), message, f"Declared outputs: {declared}.")
    if outputs and _makes_all_outputs_itself(file):
        made = {name for _, name in outputs}
        for index, spec in enumerate(config.outputs):
            if spec.name not in made:
                message = (
                    f"output '{spec.name}' of model '{model.name}' is declared, but {file.source.path.name} never "
                    "creates it"
                )
                yield Finding("python-output-missing", model.folder.field(f"output[{index}].name"), message)


def _inputs(file: PythonFile, model: CheckedModel, config: ModelConfig, own: set[str]) -> Iterator[Finding]:
    known = {spec.name for spec in config.inputs}
    if not known:
        return
    given = {name for batch_input in config.batch_inputs for name in batch_input.targets} | own
    if config.sequence_batching is not None:
        given |= {control.name for control in config.sequence_batching.controls}
        given |= {state.input_name for state in config.sequence_batching.states}
    for call in file.calls_of("get_input_tensor_by_name"):
        name = text_of(argument(call, 1, "name"))
        if name is not None and name not in known | given:
            message = f"input '{name}' is not declared in the configuration of model '{model.name}'"
            cure = f"Declared inputs: {', '.join(sorted(known | given - own))}."
            yield Finding("python-input", file.place(call), message, cure)


def _given(file: PythonFile) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that create outputs, with their names; tensors for BLS requests are not outputs."""
    calls_models = any(True for _ in file.calls_of("InferenceRequest"))
    for call in file.calls_of("Tensor"):
        name = text_of(file.value_of(argument(call, 0, "name")))
        if name is None:
            continue
        around = [file.api(outer.func) for outer in file.around(call) if isinstance(outer, ast.Call)]
        if "InferenceResponse" in around or not calls_models:
            yield call, name


def _makes_all_outputs_itself(file: PythonFile) -> bool:
    names = [text_of(file.value_of(argument(call, 0, "name"))) for call in file.calls_of("Tensor")]
    responses = list(file.calls_of("InferenceResponse"))
    text = file.source.text
    others = "InferenceRequest" in text or "from_dlpack" in text
    return bool(responses) and None not in names and not others


def _state_outputs(config: ModelConfig) -> set[str]:
    states = config.sequence_batching.states if config.sequence_batching else ()
    return {state.output_name for state in states}


def _output(
    file: PythonFile, model: CheckedModel, config: ModelConfig, spec: TensorSpec, call: ast.Call
) -> Iterator[Finding]:
    array = argument(call, 1, "numpy_array")
    index = config.outputs.index(spec)
    declaration = (Related(model.folder.field(f"output[{index}].data_type"), f"declaration of output '{spec.name}'"),)
    made = datatype(file, array)
    if made and made != spec.datatype:
        message = f"output '{spec.name}' is created as {made}, but declared as {spec.datatype}"
        yield Finding("python-datatype", file.place(call), message, related=declaration)
    dims = spec.dims if spec.reshape is None else spec.reshape
    batched = config.max_batch_size > 0
    created, declared = rank(file, array), len(dims) + batched
    if created is None or created == declared:
        return
    shape = ", ".join(map(str, ["batch", *dims] if batched else dims))
    axes = "dimension" if created == 1 else "dimensions"
    message = f"output '{spec.name}' has {created} {axes}, but {declared} are declared: [{shape}]"
    lacks_batch = batched and created == declared - 1
    if lacks_batch:
        message = f"{message}; max_batch_size is {config.max_batch_size}"
    rule = "python-batch-axis" if lacks_batch else "python-rank"
    yield Finding(rule, file.place(call), message, related=declaration)
