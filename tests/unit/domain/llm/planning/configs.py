"""The `config.json` of models whose numbers are published, as far as they matter here."""

from typing import Any

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}


def config(
    hidden: int, width: int, heads: int, layers: int, vocabulary: int, kv_heads: int, **more: Any
) -> dict[str, Any]:
    """Return the configuration of a model like Llama."""
    return {
        **_LLAMA,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "num_key_value_heads": kv_heads,
        **more,
    }


def gpt2(width: int, heads: int, layers: int) -> dict[str, Any]:
    """Return the configuration of a GPT-2."""
    return {
        "model_type": "gpt2",
        "n_embd": width,
        "n_head": heads,
        "n_layer": layers,
        "n_positions": 1024,
        "vocab_size": 50257,
    }


def deepseek(hidden: int, width: int, heads: int, layers: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    """Return the configuration of a DeepSeek with attention through a latent vector."""
    latent = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    return config(hidden, width, heads, layers, vocabulary, heads, moe_layer_freq=1, **latent, **more)


LLAMA_3_8B = config(4096, 14336, 32, 32, 128256, 8, max_position_embeddings=8192)
LLAMA_3_70B = config(8192, 28672, 64, 80, 128256, 8, max_position_embeddings=8192)
MIXTRAL_8X7B = config(4096, 14336, 32, 32, 32000, 8, model_type="mixtral", num_local_experts=8)
QWEN_05B = config(896, 4864, 14, 24, 151936, 2, model_type="qwen2", tie_word_embeddings=True)
GEMMA_2B = config(2048, 16384, 8, 18, 256000, 1, model_type="gemma", head_dim=256, tie_word_embeddings=True)
# Name, configuration, parameters, KiB of KV cache per token in 16 bits: as their model cards and papers have them.
KNOWN: tuple[tuple[str, dict[str, Any], int, float], ...] = (
    ("Llama-2-7B", _LLAMA, 6_738_415_616, 512),
    ("Llama-3-8B", LLAMA_3_8B, 8_030_261_248, 128),
    ("Llama-3-70B", LLAMA_3_70B, 70_553_706_496, 320),
    ("Mistral-7B", config(4096, 14336, 32, 32, 32000, 8, model_type="mistral"), 7_241_732_096, 128),
    ("Mixtral-8x7B", MIXTRAL_8X7B, 46_702_792_704, 128),
    ("Qwen2-7B", config(3584, 18944, 28, 28, 152064, 4, model_type="qwen2"), 7_615_616_512, 56),
    ("Qwen2.5-0.5B", QWEN_05B, 494_032_768, 12),
    ("Qwen3-8B", config(4096, 12288, 32, 36, 151936, 8, model_type="qwen3", head_dim=128), 8_190_735_360, 144),
    (
        "Qwen3-30B-A3B",
        config(
            *(2048, 6144, 32, 48, 151936, 4),
            model_type="qwen3_moe",
            head_dim=128,
            moe_intermediate_size=768,
            num_experts=128,
        ),
        30_532_122_624,
        96,
    ),
    (
        "Qwen1.5-MoE-A2.7B",
        config(
            *(2048, 5632, 16, 24, 151936, 16),
            model_type="qwen2_moe",
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            num_experts=60,
        ),
        14_315_784_192,
        192,
    ),
    ("Gemma-2B", GEMMA_2B, 2_506_172_416, 18),
    (
        "Gemma-2-9B",
        config(3584, 14336, 16, 42, 256000, 8, model_type="gemma2", head_dim=256, tie_word_embeddings=True),
        9_241_705_984,
        336,
    ),
    (
        "Gemma-3-1B",
        config(1152, 6912, 4, 26, 262144, 1, model_type="gemma3_text", head_dim=256, tie_word_embeddings=True),
        999_885_952,
        26,
    ),
    ("Phi-3-mini", config(3072, 8192, 32, 32, 32064, 32, model_type="phi3"), 3_821_079_552, 384),
    ("GPT-2", gpt2(768, 12, 12), 124_439_808, 36),
    ("GPT-2 XL", gpt2(1600, 25, 48), 1_557_611_200, 300),
    (
        "DeepSeek-V2-Lite",
        deepseek(
            *(2048, 10944, 16, 27, 102400),
            model_type="deepseek_v2",
            moe_intermediate_size=1408,
            n_routed_experts=64,
            n_shared_experts=2,
            first_k_dense_replace=1,
        ),
        15_706_484_224,
        30.375,
    ),
    (
        "DeepSeek-V3",
        deepseek(
            *(7168, 18432, 128, 61, 129280),
            model_type="deepseek_v3",
            moe_intermediate_size=2048,
            n_routed_experts=256,
            n_shared_experts=1,
            first_k_dense_replace=3,
            q_lora_rank=1536,
            topk_method="noaux_tc",
        ),
        671_026_419_200,
        68.625,
    ),
)
