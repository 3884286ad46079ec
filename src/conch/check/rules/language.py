"""The rules for models that generate: their engine's arguments, and their chat template. Ids never change."""

from conch.check.finding import Rule, Severity

ENGINE_ARGUMENTS = Rule(
    "engine-arguments",
    Severity.ERROR,
    "A language model's engine cannot be started as its files say",
    "The server refuses the model, with the same words.",
    "Change what the message names.",
)
PATH_ELSEWHERE = Rule(
    "path-elsewhere",
    Severity.NOTICE,
    "An absolute path that does not exist here",
    "A server on this machine refuses the model; where it is served, the path may exist.",
    "Make sure that the path exists on the serving machine, or name a file in the model's folder.",
)
CHAT_TEMPLATE = Rule(
    "chat-template",
    Severity.ERROR,
    "A chat template is no Jinja",
    "The model loads and completes texts; every request for a chat fails.",
    "Mend the template at the line, or take that of the model's release.",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
