"""The rules for Python models. Ids never change."""

from conch.check.finding import Rule, Severity

_ERROR, _WARNING, _NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

PYTHON_SYNTAX = Rule(
    "python-syntax",
    _ERROR,
    "The Python file does not parse",
    "The model cannot be imported.",
    "Mend the text at the place.",
)
PYTHON_CLASS = Rule(
    "python-class",
    _ERROR,
    "There is no class TritonPythonModel",
    "The server looks for a class of exactly this name.",
    "Name the model's class TritonPythonModel.",
)
PYTHON_EXECUTE = Rule(
    "python-execute",
    _ERROR,
    "There is no method execute(self, requests)",
    "The server calls it with the list of requests.",
    "Write `def execute(self, requests):` in TritonPythonModel.",
)
PYTHON_RETURN = Rule(
    "python-return",
    _ERROR,
    "execute does not return what the server expects",
    "Every request of the batch fails.",
    "Return a list with one InferenceResponse for each request; a decoupled model returns None.",
)
PYTHON_RESPONSE_COUNT = Rule(
    "python-response-count",
    _WARNING,
    "Not every request seems to get a response",
    "If the numbers differ, the whole batch fails.",
    "Append exactly one response for each request, an error response where something is wrong.",
)
PYTHON_SENDER = Rule(
    "python-sender",
    _WARNING,
    "A response sender in a model that is not decoupled",
    "Such a model may send exactly one response to each request.",
    "Add `model_transaction_policy { decoupled: true }` if it sends any other number.",
)
PYTHON_API = Rule(
    "python-api",
    _ERROR,
    "A name that triton_python_backend_utils does not have",
    "The model fails with an AttributeError when it comes to this line.",
    "Use the name that there is.",
)
PYTHON_METRIC_CLASS = Rule(
    "python-metric-class",
    _ERROR,
    "A metric is declared as a subclass",
    "MetricFamily is called, not subclassed: nothing reads the attributes of the class, so the metric never appears.",
    "In initialize: `family = pb_utils.MetricFamily(name=…, description=…, kind=pb_utils.MetricFamily.GAUGE)`, then "
    "`family.Metric(labels={…})`.",
)
PYTHON_INPUT = Rule(
    "python-input",
    _ERROR,
    "The model asks for an input that is not declared",
    "get_input_tensor_by_name returns None, and the next use of it fails.",
    "Declare the input in config.pbtxt, or ask for one that is there.",
)
PYTHON_OUTPUT = Rule(
    "python-output",
    _ERROR,
    "The model gives an output that is not declared",
    "The server drops the output from every response, and a request that asks for it is refused.",
    "Declare the output in config.pbtxt, or give one that is there.",
)
PYTHON_OUTPUT_MISSING = Rule(
    "python-output-missing",
    _WARNING,
    "A declared output is never made",
    "A client that asks for it gets an error or a response without it.",
    "Make the output, or remove it from config.pbtxt.",
)
PYTHON_DATATYPE = Rule(
    "python-datatype",
    _ERROR,
    "An output has another datatype than declared",
    "The response contradicts the metadata that clients rely on.",
    "Convert with `.astype(…)`, or change data_type.",
)
PYTHON_BATCH_AXIS = Rule(
    "python-batch-axis",
    _ERROR,
    "An output has no batch axis, though max_batch_size is above 0",
    "Every tensor of a model that batches begins with the batch axis, in each request, even for one item.",
    "Give it an axis for the items of the request: stack what is made for each item, or `array[np.newaxis]` for one.",
)
PYTHON_RANK = Rule(
    "python-rank",
    _WARNING,
    "An output has another number of dimensions than declared",
    "The response contradicts the metadata that clients rely on.",
    "Reshape it, or change dims.",
)
PYTHON_FIRST_ITEM = Rule(
    "python-first-item",
    _WARNING,
    "Only the first item of a request is read, though max_batch_size is above 0",
    "A request may bring up to max_batch_size items; all but the first are lost without an error.",
    "Go through all items of the array, or set max_batch_size to 0.",
)
PYTHON_BATCH_NMS = Rule(
    "python-batch-nms",
    _WARNING,
    "Boxes of a whole batch go into one non-maximum suppression",
    "Boxes of different images suppress each other, or the batch axis is taken for boxes.",
    "Suppress for each item of the batch by itself.",
)
PYTHON_CLASS_COUNT = Rule(
    "python-class-count",
    _WARNING,
    "The class names do not match the number of classes",
    "A class beyond the list raises an IndexError, or is called by the wrong name.",
    "Read the names from a label file that has one for each class.",
)
PYTHON_IMAGE_LIMIT = Rule(
    "python-image-limit",
    _WARNING,
    "Images are decoded without a limit of their size",
    "A small file can hold an image of gigabytes; one request stops the instance for seconds or ends it.",
    "Read the size from the header first and refuse what is too large with a TritonError.",
)
PYTHON_PRINT = Rule(
    "python-print",
    _NOTICE,
    "The model prints",
    "Each line appears in the log at level INFO, under the instance's name; no other level is possible.",
    "Use pb_utils.Logger, which has levels.",
)
PYTHON_SLEEP = Rule(
    "python-sleep",
    _NOTICE,
    "The model sleeps while it executes",
    "The instance answers nobody in that time.",
    "Use `async def execute` and asyncio.sleep, or a decoupled model.",
)
PYTHON_IMPORT = Rule(
    "python-import",
    _NOTICE,
    "An import is not installed here",
    "A server in this environment cannot load the model.",
    "Install the package, or bring an environment along (EXECUTION_ENV_PATH).",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
