"""Message types between the server and an engine process: the first item of each header, and what follows it.

*params* are the sampling parameters that are not at their defaults, by vLLM's names; `structured` is `(kind, value)`.
With it comes `client`, in whose turn it is compiled. `images` are `(format, width, height, file)`, in the order of
their placeholders in the prompt.
*event* is `(key, deltas, end)`: *delta* is `(index, text, token ids, finish reason or None, stop reason or None,
logprobs[, prompt])`, *logprobs* being for each token a tuple of `(token id, text, logprob[, rank])`, the chosen one
first;
*prompt* is `(token ids, text, pieces, logprobs[, cut tokens])` in the first delta of a request whose *params* hold
`return_prompt`: "ids", or "text" for the text of all tokens and of each, or "count" for the number of the token ids in
their place. With `prompt_only` it is the only delta;
*end* is None while more will follow, `(prompt tokens, completion tokens, cached tokens, scheduled[, cut tokens])`, or
`(code, text)` for an error; cut tokens are those of the prompt that `truncate_prompt_tokens` has removed;
*scheduled* is when the engine began with the request, in monotonic nanoseconds; 0 or missing if unknown.
*times* are when the step began and ended, CPU time and wait for a processor of its thread, in nanoseconds; or empty.
*load* is `(running, waiting, KV cache usage, prefix cache queries, prefix cache hits, preemptions)`.
"""

# Server → engine.
LOAD = 1  # driver, options                                              → LOADED
GENERATE = 2  # key, prompt (text or token ids), params, adapter, priority  → STEP*
ABORT = 3  # key; no response
STOP = 4  # nothing; the process then exits
ADAPTER = 5  # key, name, path of a LoRA adapter to load, "" to unload it    → ADAPTER_SET

# Engine → server.
LOADED = 32  # error text or "", info; after a text that ends with a colon, the server appends the end of stderr
STEP = 33  # events, load, times
LOG = 34  # level, text
ADAPTER_SET = 35  # key, code, error text or ""

# Levels of LOG, as the standard library numbers them.
ERROR, WARNING, INFO = 40, 30, 20

# Codes of errors: Triton's.
INTERNAL, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, CANCELLED = 1, 3, 4, 5, 7
