"""The DeepSeek-V3 architecture causal language model, built by transformers from `spec.training.model`.

Called by engine.py inside zero.Init, so every parameter is partitioned as soon as it exists.
"""

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Experts,
    DeepseekV3ForCausalLM,
    DeepseekV3RotaryEmbedding,
    DeepseekV3TopkRouter,
)

from ciuic_api.training import Model

EXPERT_PATHS = ("grouped_mm", "batched_mm", "eager")
"""Fastest first, on a CPU as well as on a GPU; not every device and type has the first."""


def transformers_config(model: Model, sequence_length: int) -> Any:
    return DeepseekV3Config(
        vocab_size=model.vocabulary_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.dense_size,
        moe_intermediate_size=model.expert_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.attention_heads,
        num_key_value_heads=model.attention_heads,
        n_shared_experts=model.shared_experts,
        n_routed_experts=model.routed_experts,
        num_experts_per_tok=model.experts_per_token,
        n_group=model.expert_groups,
        topk_group=model.top_groups,
        first_k_dense_replace=model.dense_layers,
        q_lora_rank=model.query_rank or None,
        kv_lora_rank=model.key_value_rank,
        qk_rope_head_dim=model.query_rope_size,
        qk_nope_head_dim=model.query_nope_size,
        v_head_dim=model.value_size,
        max_position_embeddings=sequence_length,
        num_mtp_layers=0,
        tie_word_embeddings=False,
        use_cache=False,
    )


def build_model(config: Any) -> Any:
    """Without values: see initialise.py. Layers are recomputed in the backward pass, one at a time.

    Without recomputation, autograd would keep views of the gathered expert weights alive from forward to backward.
    """
    model = DeepseekV3ForCausalLM(config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def reset_buffers(model: Any, device: torch.device) -> None:
    """Buffers in fp32: zero.Init builds even rotary frequencies in the type of the weights, rounded."""
    model.model.rotary_emb = DeepseekV3RotaryEmbedding(model.config).to(device)
    for router in routers(model).values():
        router.e_score_correction_bias = torch.nn.Buffer(torch.zeros(router.num_experts, device=device))


def routers(model: Any) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, DeepseekV3TopkRouter)}


def choose_expert_path(config: Any, device: torch.device, dtype: torch.dtype) -> str:
    """The first of EXPERT_PATHS that computes forward and backward here, tried with two experts of the real size."""
    probe_config = DeepseekV3Config(
        hidden_size=config.hidden_size, moe_intermediate_size=config.moe_intermediate_size, n_routed_experts=2
    )
    failures = []
    for path in EXPERT_PATHS:
        probe_config._experts_implementation = path
        experts = DeepseekV3Experts(probe_config).to(device, dtype)
        for weight in experts.parameters():
            torch.nn.init.ones_(weight)
        hidden = torch.ones(4, config.hidden_size, device=device, dtype=dtype, requires_grad=True)
        chosen = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]], device=device)
        try:
            experts(hidden, chosen, torch.ones(4, 2, device=device, dtype=dtype)).sum().backward()
        except (RuntimeError, NotImplementedError) as error:
            failures.append(f"{path}: {error}")
            continue
        return path
    raise RuntimeError(f"no way to compute experts works on {device}: {'; '.join(failures)}")


def token_losses(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Sum of the cross-entropy (nats, fp32) of every next token. `tokens` is (samples, length + 1)."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
