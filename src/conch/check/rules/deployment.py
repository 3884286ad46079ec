"""The rules for what lies beside a repository: scripts, images, charts. Ids never change."""

from conch.check.finding import Rule, Severity

_ERROR, _WARNING, _NOTICE = Severity.ERROR, Severity.WARNING, Severity.NOTICE

FLAG_UNKNOWN = Rule(
    "flag-unknown",
    _ERROR,
    "A flag that the server does not have",
    "The server does not start.",
    "Remove the flag.",
)
FLAG_VALUE = Rule(
    "flag-value",
    _ERROR,
    "A flag has a value that it cannot take",
    "The server does not start.",
    "Give it a value of the kind that the message names.",
)
FLAG_REFUSED = Rule(
    "flag-refused",
    _ERROR,
    "A flag of Triton's that Conch refuses",
    "The server does not start, rather than behave differently.",
    "Remove the flag; docs/reference/flags.md says why.",
)
FLAG_NO_EFFECT = Rule(
    "flag-no-effect",
    _NOTICE,
    "A flag of Triton's that has no effect in Conch",
    "The server accepts it and says so in its log.",
    "Leave it for Triton's sake, or remove it.",
)
IMAGE_TAG = Rule(
    "image-tag",
    _WARNING,
    "The image that is deployed is not the image that the text names",
    "Readers prepare for one version and get another.",
    "Name the same tag in both.",
)
SHM_VARIABLE = Rule(
    "shm-variable",
    _WARNING,
    "The size of the shared memory is set as an environment variable",
    "It is an option of the container's runtime; as a variable it does nothing.",
    "Mount an emptyDir with `medium: Memory` at /dev/shm, or run the container with --shm-size.",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
