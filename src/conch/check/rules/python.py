"""The rules for Python models. Ids never change."""

from conch.check.finding import Rule, Severity

_ERROR, _WARNING, _NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

PYTHON_SYNTAX = Rule(
    "python-syntax",
    _ERROR,
    "Syntax error in a Python file",
    "The model cannot be imported.",
    "Correct the syntax at the given line.",
)
PYTHON_CLASS = Rule(
    "python-class",
    _ERROR,
    "No class TritonPythonModel",
    "The server cannot load the model: it needs a class of exactly this name.",
    "Rename the model's class to TritonPythonModel.",
)
PYTHON_EXECUTE = Rule(
    "python-execute",
    _ERROR,
    "No method execute(self, requests)",
    "The server cannot use the model: it calls this method with the list of requests.",
    "Define `def execute(self, requests):` in TritonPythonModel.",
)
PYTHON_RETURN = Rule(
    "python-return",
    _ERROR,
    "execute has an invalid return value",
    "Every request of the batch fails.",
    "Return a list with one InferenceResponse for each request; a decoupled model returns None.",
)
PYTHON_RESPONSE_COUNT = Rule(
    "python-response-count",
    _WARNING,
    "A request probably gets no response",
    "The whole batch fails if the numbers of requests and responses differ.",
    "Append exactly one response for each request; after a failure, an error response.",
)
PYTHON_SENDER = Rule(
    "python-sender",
    _WARNING,
    "Response sender in a model that is not decoupled",
    "A model that is not decoupled must send exactly one response to each request.",
    "Add `model_transaction_policy { decoupled: true }` if it sends another number of responses.",
)
PYTHON_API = Rule(
    "python-api",
    _ERROR,
    "Unknown name in triton_python_backend_utils",
    "The model fails with an AttributeError when it executes this line.",
    "Use a name that exists.",
)
PYTHON_METRIC_CLASS = Rule(
    "python-metric-class",
    _ERROR,
    "A metric is declared as a subclass",
    "The metric never appears: MetricFamily must be called, and attributes of a subclass are ignored.",
    "In initialize: `family = pb_utils.MetricFamily(name=…, description=…, kind=pb_utils.MetricFamily.GAUGE)`, then "
    "`family.Metric(labels={…})`.",
)
PYTHON_INPUT = Rule(
    "python-input",
    _ERROR,
    "The model reads an undeclared input",
    "get_input_tensor_by_name returns None, and using it fails.",
    "Declare the input in config.pbtxt, or read a declared one.",
)
PYTHON_OUTPUT = Rule(
    "python-output",
    _ERROR,
    "The model returns an undeclared output",
    "The server drops the output from every response and refuses requests for it.",
    "Declare the output in config.pbtxt, or return a declared one.",
)
PYTHON_OUTPUT_MISSING = Rule(
    "python-output-missing",
    _WARNING,
    "A declared output is never created",
    "A request for the output gets an error, or a response without it.",
    "Create the output, or remove it from config.pbtxt.",
)
PYTHON_DATATYPE = Rule(
    "python-datatype",
    _ERROR,
    "The datatype of an output differs from its declaration",
    "Responses do not match the model's metadata, which clients rely on.",
    "Convert the array with `.astype(…)`, or change data_type.",
)
PYTHON_BATCH_AXIS = Rule(
    "python-batch-axis",
    _ERROR,
    "An output has no batch axis, though max_batch_size is above 0",
    "With max_batch_size above 0, the first axis of every tensor is the batch axis, even for a single item.",
    "Add the axis: stack the arrays of the items, or use `array[np.newaxis]` for a single item.",
)
PYTHON_RANK = Rule(
    "python-rank",
    _WARNING,
    "The number of dimensions of an output differs from its declaration",
    "Responses do not match the model's metadata, which clients rely on.",
    "Reshape the array, or change dims.",
)
PYTHON_FIRST_ITEM = Rule(
    "python-first-item",
    _WARNING,
    "Only the first item of a request is read, though max_batch_size is above 0",
    "A request may contain up to max_batch_size items; all but the first are ignored without an error.",
    "Process all items of the array, or set max_batch_size to 0.",
)
PYTHON_BATCH_NMS = Rule(
    "python-batch-nms",
    _WARNING,
    "Non-maximum suppression is applied to a whole batch",
    "Boxes of different images suppress each other, or the batch axis is treated as boxes.",
    "Apply it to each item of the batch separately.",
)
PYTHON_CLASS_COUNT = Rule(
    "python-class-count",
    _WARNING,
    "The number of class names differs from the number of classes",
    "A class above the length of the list raises an IndexError, or gets a wrong name.",
    "Read the names from a label file with one line for each class.",
)
PYTHON_IMAGE_LIMIT = Rule(
    "python-image-limit",
    _WARNING,
    "Images are decoded without a size limit",
    "A small file can contain an image of gigabytes: one request can block the instance for seconds or crash it.",
    "Read the size from the header first, and refuse images that are too large with a TritonError.",
)
PYTHON_GAUGE = Rule(
    "python-gauge-constant",
    _WARNING,
    "A gauge is set to a constant for each request",
    "It counts nothing: two requests at once leave it at 1, and it stays there when they end.",
    "Use `metric.increment(1)` at the begin of a request and `metric.increment(-1)` at its end, in `finally`.",
)
CLIENT_TIMING = Rule(
    "client-timing",
    _WARNING,
    "A client measures the submission of a request, not its response",
    "The measured latency is that of a function call, near 0.00 ms.",
    "Read the clock after the result: in the callback, after get_result(), or inside the loop over the responses; or "
    "measure with `conch bench` or `conch client`.",
)
PYTHON_PRINT = Rule(
    "python-print",
    _NOTICE,
    "The model uses print",
    "Every line is logged at level INFO with the instance's name.",
    "Use pb_utils.Logger, which supports all levels.",
)
PYTHON_SLEEP = Rule(
    "python-sleep",
    _NOTICE,
    "The model sleeps in execute",
    "The instance processes no other request during that time.",
    "Use `async def execute` and asyncio.sleep, or a decoupled model.",
)
PYTHON_IMPORT = Rule(
    "python-import",
    _NOTICE,
    "An imported package is not installed here",
    "A server in this environment cannot load the model.",
    "Install the package, or add an environment to the model (EXECUTION_ENV_PATH).",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
