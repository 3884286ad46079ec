"""The rules for repositories: configurations, versions, model files, labels, ensembles. Ids never change."""

from conch.check.finding import Rule, Severity

_ERROR, _WARNING, _NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

# ---- repository and configuration ------------------------------------------------------------------------------------

REPOSITORY_EMPTY = Rule(
    "repository-empty",
    _WARNING,
    "There is nothing to check",
    "No folder below the path has a config.pbtxt or a version folder with a model file.",
    "Name the model repository, a model's folder, or a folder that holds a repository.",
)
MODEL_DUPLICATE = Rule(
    "model-duplicate",
    _ERROR,
    "A model is in two repositories",
    "A server with both repositories serves neither of the two.",
    "Rename or remove one of them.",
)
MODEL_NAME = Rule(
    "model-name",
    _ERROR,
    "The name in the configuration is not the folder's",
    "The server refuses the model.",
    "Leave `name` out of config.pbtxt, or give it the folder's name.",
)
CONFIG_SYNTAX = Rule(
    "config-syntax",
    _ERROR,
    "The configuration is no protobuf text",
    "The server cannot read the configuration and refuses the model.",
    "Mend the text at the place.",
)
CONFIG_UNKNOWN = Rule(
    "config-unknown",
    _ERROR,
    "A field or value that Triton's schema does not have",
    "The server cannot read the configuration and refuses the model.",
    "Write the name that is meant, or remove the field.",
)
CONFIG_INVALID = Rule(
    "config-invalid",
    _ERROR,
    "The configuration contradicts itself or the rules",
    "The server refuses the model, with the same words.",
    "Change what the message names.",
)
CONFIG_UNSUPPORTED = Rule(
    "config-unsupported",
    _ERROR,
    "The configuration asks for what Conch does not do",
    "The server refuses the model rather than serve it differently.",
    "Remove the field; docs/compatibility.md says what there is in its place.",
)
CONFIG_NAMESPACE = Rule(
    "config-namespace",
    _WARNING,
    "A step of an ensemble names a namespace",
    "The server refuses the ensemble, unless it is started with --model-namespacing=true.",
    "Start the server with the flag, or leave model_namespace out.",
)
CONFIG_NO_EFFECT = Rule(
    "config-no-effect",
    _NOTICE,
    "A setting has no effect in Conch",
    "The server accepts it, says so in its log, and does nothing with it.",
    "Leave it for Triton's sake, or remove it.",
)
BACKEND_UNKNOWN = Rule(
    "backend-unknown",
    _ERROR,
    "There is no such backend",
    "The server cannot load the model.",
    "Name a backend that there is.",
)
BACKEND_NOT_INSTALLED = Rule(
    "backend-not-installed",
    _NOTICE,
    "The backend's package is not installed here",
    "A server in this environment cannot load the model, and the check cannot ask the framework about it.",
    "Install the extra that the message names.",
)

# ---- versions, model files, labels -----------------------------------------------------------------------------------

VERSION_NONE = Rule(
    "version-none",
    _ERROR,
    "No version would be served",
    "The version policy chooses none of the version folders.",
    "Add a version folder (`1`), or change version_policy.",
)
VERSION_ABSENT = Rule(
    "version-absent",
    _WARNING,
    "The version policy names a version that is not there",
    "The server serves the others and says nothing.",
    "Add the version's folder, or remove its number from version_policy.",
)
VERSION_NAME = Rule(
    "version-name",
    _WARNING,
    "A folder looks like a version and is none",
    "Only names that are a number without leading zeros are versions; the server overlooks the folder.",
    "Rename the folder to the number alone.",
)
NATIVE_EXTENSION = Rule(
    "native-extension",
    _WARNING,
    "The configuration names a library of native code",
    "The server refuses to load the model, unless it is started with --allow-native-extensions=true.",
    "Start the server with the flag if the repository is trusted, or remove the library from config.pbtxt.",
)
FILE_MISSING = Rule(
    "file-missing",
    _ERROR,
    "A file that the model needs is not there",
    "The server cannot load this version.",
    "Put the file there, or name the right one in config.pbtxt.",
)
FILE_EMPTY = Rule(
    "file-empty", _ERROR, "A model file is empty", "The server cannot load this version.", "Copy the file again."
)
FILE_LFS = Rule(
    "file-lfs-pointer",
    _ERROR,
    "A Git LFS pointer lies in place of a file",
    "The file holds the address of the model, not the model.",
    "Run `git lfs pull` where the repository was cloned.",
)
FILE_UNREADABLE = Rule(
    "file-unreadable",
    _ERROR,
    "A file cannot be read",
    "The server, run by the same user, cannot read it either.",
    "Change the file's owner or permissions.",
)
FILE_DAMAGED = Rule(
    "file-damaged",
    _ERROR,
    "A model file is not in its format",
    "It is cut short, or something else under this name; the framework will refuse it.",
    "Export or copy the model again.",
)
MODEL_SIGNATURE = Rule(
    "model-signature",
    _ERROR,
    "Configuration and model file contradict each other",
    "The server refuses the version, with the same words.",
    "Follow the model file, which cannot be argued with.",
)
MODEL_UNREAD = Rule(
    "model-unread",
    _NOTICE,
    "The model file was not held against the configuration",
    "Inputs and outputs inside the file are known to its framework only; nothing is said about them.",
    "Start the server to be sure.",
)
LABEL_FILE = Rule(
    "label-file",
    _ERROR,
    "A label file cannot be read",
    "The server refuses the model.",
    "Put the file beside config.pbtxt, or remove label_filename.",
)
LABEL_COUNT = Rule(
    "label-count",
    _WARNING,
    "There are more or fewer labels than classes",
    "Classes without a label are answered without one; if a line is missing in the middle, all that follow are wrong.",
    "One line for each element of the output, in its order.",
)
LABEL_LINE_ENDS = Rule(
    "label-line-ends",
    _WARNING,
    "The lines of a label file end as on Windows",
    "The carriage return is part of the label that clients get.",
    "End the lines with a line feed alone.",
)

# ---- ensembles -------------------------------------------------------------------------------------------------------

ENSEMBLE_MISSING = Rule(
    "ensemble-missing-model",
    _ERROR,
    "A step's model, or its version, is not there",
    "The server cannot load the ensemble.",
    "Add the model, or name one that is there.",
)
ENSEMBLE_CONTRACT = Rule(
    "ensemble-contract",
    _ERROR,
    "Two stages of an ensemble do not fit",
    "The server refuses the ensemble, with the same words.",
    "Make names, datatypes and shapes of the two sides agree.",
)
ENSEMBLE_OPTIONAL = Rule(
    "ensemble-optional",
    _WARNING,
    "An input of an ensemble is optional, and a step needs it",
    "Requests without the input fail.",
    "Make both inputs optional or neither.",
)
ENSEMBLE_UNCHECKED = Rule(
    "ensemble-unchecked",
    _NOTICE,
    "An ensemble was not checked",
    "The inputs and outputs of one of its models are not known without starting it.",
    "Declare `input` and `output` in that model's config.pbtxt.",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
