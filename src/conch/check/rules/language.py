"""The rules for language models: engine arguments and chat templates. Ids never change."""

from conch.check.finding import Rule, Severity

ENGINE_ARGUMENTS = Rule(
    "engine-arguments",
    Severity.ERROR,
    "Invalid engine arguments of a language model",
    "The server refuses the model with the same message.",
    "Correct the argument or file that the message names.",
)
PATH_ELSEWHERE = Rule(
    "path-elsewhere",
    Severity.NOTICE,
    "An absolute path does not exist on this machine",
    "The server refuses the model if the path does not exist on its machine either.",
    "Make sure that the path exists on the server's machine, or use a file in the model's folder.",
)
CHAT_TEMPLATE = Rule(
    "chat-template",
    Severity.ERROR,
    "A chat template is not valid Jinja",
    "The model loads and serves completions, but every chat request fails.",
    "Correct the template at the line, or use the template of the model's release.",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
