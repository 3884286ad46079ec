"""Writes the chat model as one GGUF file: weights of eight bits, tokens and chat template."""

from __future__ import annotations

from pathlib import Path

from chat_network import ChatNetwork
from chat_tokens import END, END_OF_TEXT, SPECIAL, Tokens
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_NORMAL, _CONTROL = 1, 3


def write(path: Path, network: ChatNetwork, tokens: Tokens) -> None:
    """Write the file; matrices as Q8_0, vectors as F32."""
    shape = network.shape
    writer = GGUFWriter(path, "qwen2")
    writer.add_name("Conch's chat model")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens.texts)
    writer.add_token_types([_NORMAL] * (len(tokens) - len(SPECIAL)) + [_CONTROL] * len(SPECIAL))
    writer.add_token_merges([" ".join(pair) for pair in tokens.merges])
    writer.add_bos_token_id(tokens.special(END_OF_TEXT))
    writer.add_pad_token_id(tokens.special(END_OF_TEXT))
    writer.add_eos_token_id(tokens.special(END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, weight in network.state_dict().items():
        array = weight.float().numpy()
        if array.ndim == 2:
            writer.add_tensor(name, quantize(array, GGMLQuantizationType.Q8_0), raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
