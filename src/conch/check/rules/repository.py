"""The rules for repositories: configurations, versions, model files, labels, ensembles. Ids never change."""

from conch.check.finding import Rule, Severity

_ERROR, _WARNING, _NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

# ---- repository and configuration ------------------------------------------------------------------------------------

REPOSITORY_EMPTY = Rule(
    "repository-empty",
    _WARNING,
    "Nothing to check",
    "No folder below the path has a config.pbtxt or a version folder with a model file.",
    "Use the path of a model repository, a model's folder, or a folder that contains a repository.",
)
MODEL_DUPLICATE = Rule(
    "model-duplicate",
    _ERROR,
    "A model is in two repositories",
    "A server with both repositories serves neither model.",
    "Rename or remove one of them.",
)
MODEL_NAME = Rule(
    "model-name",
    _ERROR,
    "The name in the configuration differs from the folder's name",
    "The server refuses the model.",
    "Remove `name` from config.pbtxt, or set it to the folder's name.",
)
CONFIG_SYNTAX = Rule(
    "config-syntax",
    _ERROR,
    "Syntax error in the configuration",
    "The server cannot read the configuration and refuses the model.",
    "Correct the syntax at the given line.",
)
CONFIG_UNKNOWN = Rule(
    "config-unknown",
    _ERROR,
    "Unknown field or value in the configuration",
    "The server cannot read the configuration and refuses the model.",
    "Correct the name, or remove the field.",
)
CONFIG_INVALID = Rule(
    "config-invalid",
    _ERROR,
    "Invalid configuration",
    "The server refuses the model with the same message.",
    "Correct the field that the message names.",
)
CONFIG_UNSUPPORTED = Rule(
    "config-unsupported",
    _ERROR,
    "The configuration uses an unsupported feature",
    "The server refuses the model, because its answers would differ from Triton's.",
    "Remove the field; docs/compatibility.md lists alternatives.",
)
CONFIG_NAMESPACE = Rule(
    "config-namespace",
    _WARNING,
    "A step of an ensemble names a namespace",
    "The server refuses the ensemble without --model-namespacing=true.",
    "Start the server with the flag, or remove model_namespace.",
)
CONFIG_NO_EFFECT = Rule(
    "config-no-effect",
    _NOTICE,
    "A setting has no effect in Conch",
    "The server ignores the setting and logs a notice.",
    "Keep it for use with Triton, or remove it.",
)
BACKEND_UNKNOWN = Rule(
    "backend-unknown",
    _ERROR,
    "Unknown backend",
    "The server cannot load the model.",
    "Correct the name, or install the package that adds the backend.",
)
BACKEND_NOT_INSTALLED = Rule(
    "backend-not-installed",
    _NOTICE,
    "The backend's package is not installed here",
    "A server in this environment cannot load the model, and its files were not checked with the framework.",
    "Install the extra that the message names.",
)

# ---- versions, model files, labels -----------------------------------------------------------------------------------

VERSION_NONE = Rule(
    "version-none",
    _ERROR,
    "No version is served",
    "The version policy selects none of the version folders.",
    "Add a version folder (`1`), or change version_policy.",
)
VERSION_ABSENT = Rule(
    "version-absent",
    _WARNING,
    "The version policy names a version that does not exist",
    "The server serves the other versions without a warning.",
    "Add the version's folder, or remove its number from version_policy.",
)
VERSION_NAME = Rule(
    "version-name",
    _WARNING,
    "A folder name is similar to a version, but not valid",
    "The server ignores the folder: the name of a version is a number without leading zeros.",
    "Rename the folder to just the number.",
)
NATIVE_EXTENSION = Rule(
    "native-extension",
    _WARNING,
    "The configuration names a library of native code",
    "The server refuses the model without --allow-native-extensions=true.",
    "Start the server with the flag if the repository is trusted, or remove the library from config.pbtxt.",
)
FILE_MISSING = Rule(
    "file-missing",
    _ERROR,
    "A file of the model is missing",
    "The server cannot load this version.",
    "Add the file, or correct its name in config.pbtxt.",
)
FILE_EMPTY = Rule(
    "file-empty", _ERROR, "A model file is empty", "The server cannot load this version.", "Copy the file again."
)
FILE_LFS = Rule(
    "file-lfs-pointer",
    _ERROR,
    "A model file is a Git LFS pointer",
    "The server cannot load this version: the file contains only the address of the model.",
    "Run `git lfs pull` in the clone of the repository.",
)
FILE_UNREADABLE = Rule(
    "file-unreadable",
    _ERROR,
    "A file cannot be read",
    "A server of the same user cannot read it either.",
    "Change the file's owner or permissions.",
)
FILE_UNCHECKED = Rule(
    "file-unchecked",
    _NOTICE,
    "A file was not checked",
    "Mistakes in it are not found.",
    "Convert it to UTF-8 text of less than 4 MiB, or leave it as it is if it is data.",
)
FILE_SYNTAX = Rule(
    "file-syntax",
    _ERROR,
    "YAML or JSON that cannot be parsed",
    "What reads the file refuses it: kubectl, docker compose, Prometheus or Grafana.",
    "Correct the syntax at the line.",
)
FILE_DAMAGED = Rule(
    "file-damaged",
    _ERROR,
    "A model file is damaged or has another format",
    "The framework cannot load it.",
    "Export or copy the model again.",
)
MODEL_SIGNATURE = Rule(
    "model-signature",
    _ERROR,
    "Configuration and model file do not match",
    "The server refuses the version with the same message.",
    "Change the configuration to match the model file.",
)
MODEL_OPERATIONS = Rule(
    "model-operations",
    _ERROR,
    "Operations of an extension in a model file",
    "The framework cannot load the model without the library that defines them.",
    "Name the library in the parameter CPU_EXTENSION_PATH and start with --allow-native-extensions=true, or convert "
    "the model with standard operations.",
)
MODEL_UNREAD = Rule(
    "model-unread",
    _NOTICE,
    "The model file was not compared with the configuration",
    "Only the framework can read the inputs and outputs in the file; mistakes in their declaration are not found.",
    "Start the server, which checks them.",
)
LABEL_FILE = Rule(
    "label-file",
    _ERROR,
    "A label file cannot be read",
    "The server refuses the model.",
    "Add the file beside config.pbtxt, or remove label_filename.",
)
LABEL_COUNT = Rule(
    "label-count",
    _WARNING,
    "The number of labels differs from the number of classes",
    "Some classes have no label; if a line is missing, all following labels are wrong.",
    "Write one line for each element of the output, in the same order.",
)
LABEL_LINE_ENDS = Rule(
    "label-line-ends",
    _WARNING,
    "A label file has Windows line ends",
    "Conch ignores the carriage return, but Triton returns it as part of the label.",
    "End the lines with a line feed only.",
)

# ---- ensembles -------------------------------------------------------------------------------------------------------

ENSEMBLE_MISSING = Rule(
    "ensemble-missing-model",
    _ERROR,
    "The model of a step, or its version, does not exist",
    "The server cannot load the ensemble.",
    "Add the model, or use one that exists.",
)
ENSEMBLE_CONTRACT = Rule(
    "ensemble-contract",
    _ERROR,
    "Two steps of an ensemble do not match",
    "The server refuses the ensemble with the same message.",
    "Make names, datatypes and shapes of the two sides equal.",
)
ENSEMBLE_OPTIONAL = Rule(
    "ensemble-optional",
    _WARNING,
    "An optional input of an ensemble is required by a step",
    "Requests without the input fail.",
    "Make both inputs optional or neither.",
)
ENSEMBLE_UNCHECKED = Rule(
    "ensemble-unchecked",
    _NOTICE,
    "An ensemble was not checked",
    "The inputs and outputs of one of its models are unknown until the server loads it.",
    "Declare `input` and `output` in that model's config.pbtxt.",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
