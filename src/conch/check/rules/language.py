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
CHAT_TEMPLATE_MISSING = Rule(
    "chat-template-missing",
    Severity.NOTICE,
    "A language model without a chat template",
    "Completions work, but the server refuses chat requests.",
    "Use a file of an instruction-tuned model, or serve only completions.",
)
CONTEXT_LENGTH = Rule(
    "context-length",
    Severity.ERROR,
    "More context than the model was trained with",
    "The engine refuses the model.",
    "Lower max_model_len to the model's context length, or leave it out.",
)
QUANTISATION = Rule(
    "quantisation",
    Severity.NOTICE,
    "A quantisation that the engine may not read",
    "openvino_genai reads the common types of GGUF files: F16, F32, Q4_0, Q4_1, Q4_K, Q6_K and Q8_0.",
    "Use a file in Q4_K_M or Q8_0, or convert the model to OpenVINO IR.",
)

RULES: tuple[Rule, ...] = tuple(value for value in globals().values() if isinstance(value, Rule))
