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
COMMAND_MISSING = Rule(
    "command-missing",
    _ERROR,
    "Arguments of Conch's image that name no command",
    "The arguments replace those of the image, which are `serve`; the container ends with an error, again and again.",
    "Begin the arguments with the command: `args: [serve, --model-repository=/models]`",
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

IMAGE_LATEST = Rule(
    "image-latest",
    _WARNING,
    "Image without a fixed version",
    "Each node may run another version, and a rollback restores nothing.",
    "Name a version, such as the tag of a release, or a digest.",
)
IMAGE_SCRATCH = Rule(
    "image-scratch",
    _NOTICE,
    "Image FROM scratch that contains only data",
    "No container can run in it: an init container that calls cp fails.",
    "Mount it as an image volume or serve it with --model-repository=oci://…; for an init container, add a static "
    "program: COPY --from=busybox:1.37-musl /bin/busybox /bin/cp",
)
IMAGE_SCRATCH_COMMAND = Rule(
    "image-scratch-command",
    _ERROR,
    "Command in an image FROM scratch that has no program for it",
    "The build or the start of the container fails: the image has no shell.",
    "Begin with an image that has a shell, or copy a static program and use the JSON form of the command.",
)
SECRET_TEXT = Rule(
    "secret-text",
    _WARNING,
    "Secret as plain text",
    "Everyone who reads the repository, the image or the object has it.",
    "Revoke it if it is real. In Kubernetes use `valueFrom.secretKeyRef`, elsewhere a file or a variable of the "
    "environment.",
)
CONFIG_ELSEWHERE = Rule(
    "config-elsewhere",
    _WARNING,
    "config.pbtxt outside of a model",
    "The server never reads it: each model's folder has its own file.",
    "Put it into the folder of its model, or set defaults with the server's flags.",
)
TUNNEL_PUBLIC = Rule(
    "tunnel-public",
    _WARNING,
    "Tunnel that is open to the network",
    "Everyone who reaches the host reaches the port behind the tunnel, without authentication.",
    "Bind it to 127.0.0.1 or to the address of the internal network: -L 127.0.0.1:9400:host:9400, or use "
    "`conch tunnel`.",
)
COMPOSE_GPU = Rule(
    "compose-gpu",
    _ERROR,
    "Devices as a limit in a compose file",
    "docker compose refuses the file: only a reservation has devices.",
    "Move `devices` to deploy.resources.reservations.",
)
COMPOSE_INVALID = Rule(
    "compose-invalid",
    _ERROR,
    "Invalid compose file",
    "docker compose refuses the file, or the service does not start.",
    "Correct the field that the message names.",
)
TERRAFORM_DISABLED = Rule(
    "terraform-disabled",
    _WARNING,
    "Add-on with a configuration that is switched off",
    "terraform apply succeeds and installs nothing.",
    "Set the switch to true, or remove the configuration.",
)
TERRAFORM_OPEN_PORT = Rule(
    "terraform-open-port",
    _WARNING,
    "Port of the server or of SSH open to the internet",
    "Everyone can send requests, read metrics and, with model control, load models.",
    "List the networks of the clients in cidr_blocks, or use a load balancer with authentication.",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
