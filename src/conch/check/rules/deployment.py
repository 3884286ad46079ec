"""The rules for files beside a repository: scripts, images, charts. Ids never change."""

from conch.check.finding import Rule, Severity

_ERROR, _WARNING, _NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

FLAG_UNKNOWN = Rule(
    "flag-unknown",
    _ERROR,
    "Unknown flag of the server",
    "The server does not start.",
    "Correct or remove the flag.",
)
FLAG_VALUE = Rule(
    "flag-value",
    _ERROR,
    "Invalid value of a flag",
    "The server does not start.",
    "Use a value of the kind that the message names.",
)
FLAG_REFUSED = Rule(
    "flag-refused",
    _ERROR,
    "Triton flag that Conch refuses",
    "The server does not start, because it would behave differently from Triton.",
    "Remove the flag; docs/reference/flags.md has the reason.",
)
FLAG_NO_EFFECT = Rule(
    "flag-no-effect",
    _NOTICE,
    "Triton flag without effect in Conch",
    "The server ignores the flag and logs a notice.",
    "Keep it for use with Triton, or remove it.",
)
IMAGE_TAG = Rule(
    "image-tag",
    _WARNING,
    "The deployed image differs from the image in the text",
    "Readers expect another version than the deployed one.",
    "Use the same tag in both.",
)
SHM_VARIABLE = Rule(
    "shm-variable",
    _WARNING,
    "The size of the shared memory is set as an environment variable",
    "The variable has no effect: the size is an option of the container runtime.",
    "Mount an emptyDir with `medium: Memory` at /dev/shm, or run the container with --shm-size.",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
