"""`spec.training`: the typed configuration of the built-in trainer. Read by the trainer, the manifests and the CRD.

Every default is the tiny model that trains on two CPU cores; a real job states its own sizes.
"""

from typing import Annotated, Self

from pydantic import ConfigDict, Field

from .accumulation import Accumulation
from .deepspeed_config import DeepSpeed, Precision
from .guards import Guards
from .learning_rate import LearningRate
from .schema import Schema, bounded, cel, rules


class Model(Schema):
    """A DeepSeek-V3 architecture causal language model: multi-head latent attention, mixture of experts.

    Names follow transformers' DeepseekV3Config.
    """

    model_config = ConfigDict(
        json_schema_extra=rules(
            cel(
                "self.expertGroups < 1 || self.routedExperts % self.expertGroups == 0",
                "training.model.routedExperts must be a multiple of expertGroups; change one of the two",
            ),
            cel(
                "self.expertGroups < 1 || self.topGroups <= self.expertGroups",
                "training.model.topGroups must not exceed expertGroups; lower topGroups",
            ),
            cel(
                "self.expertsPerToken * self.expertGroups <= self.routedExperts * self.topGroups",
                "training.model.expertsPerToken must fit into the experts of topGroups groups; lower expertsPerToken",
            ),
            cel(
                "self.expertGroups < 1 || self.routedExperts >= 2 * self.expertGroups",
                "training.model.routedExperts must be at least twice expertGroups; lower expertGroups",
            ),
            cel(
                "self.queryRopeSize % 2 == 0",
                "training.model.queryRopeSize must be even: positions rotate pairs; add or take one",
            ),
            cel(
                "self.denseLayers <= self.layers",
                "training.model.denseLayers must not exceed layers; lower denseLayers",
            ),
        )
    )

    vocabulary_size: Annotated[int, bounded("training.model.vocabularySize", 256, 4194304, "129280 is DeepSeek-V3")] = (
        1024
    )
    """Rows of the embedding; at least the vocabulary of the data's tokenizer."""
    hidden_size: Annotated[int, bounded("training.model.hiddenSize", 8, 65536, "7168 is DeepSeek-V3")] = 64
    """Width of the residual stream."""
    layers: Annotated[int, bounded("training.model.layers", 1, 512, "61 is DeepSeek-V3")] = 3
    """Decoder layers, dense and mixture together."""
    dense_layers: Annotated[int, bounded("training.model.denseLayers", 0, 512, "3 is DeepSeek-V3")] = 1
    """The first layers that have a dense feed-forward block instead of experts."""
    attention_heads: Annotated[int, bounded("training.model.attentionHeads", 1, 1024, "128 is DeepSeek-V3")] = 4
    """Heads of each attention block."""
    query_rank: Annotated[int, bounded("training.model.queryRank", 0, 65536, "0 means no low rank")] = 32
    """Low rank of the query projection; 0: a full projection, as in V2-Lite."""
    key_value_rank: Annotated[int, bounded("training.model.keyValueRank", 1, 65536, "512 is DeepSeek-V3")] = 16
    """Low rank that keys and values are compressed to."""
    query_rope_size: Annotated[int, bounded("training.model.queryRopeSize", 2, 1024, "64 is DeepSeek-V3")] = 8
    """Part of a head that carries the rotary position."""
    query_nope_size: Annotated[int, bounded("training.model.queryNopeSize", 1, 1024, "128 is DeepSeek-V3")] = 16
    """Part of a head without position."""
    value_size: Annotated[int, bounded("training.model.valueSize", 1, 1024, "128 is DeepSeek-V3")] = 16
    """Width of a head's value."""
    dense_size: Annotated[int, bounded("training.model.denseSize", 1, 1048576, "18432 is DeepSeek-V3")] = 160
    """Inner width of a dense feed-forward block."""
    expert_size: Annotated[int, bounded("training.model.expertSize", 1, 1048576, "2048 is DeepSeek-V3")] = 32
    """Inner width of one expert."""
    routed_experts: Annotated[int, bounded("training.model.routedExperts", 2, 4096, "256 is DeepSeek-V3")] = 8
    """Experts of a mixture layer that the router chooses from."""
    shared_experts: Annotated[int, bounded("training.model.sharedExperts", 1, 64, "1 is DeepSeek-V3")] = 1
    """Experts of a mixture layer that every token uses."""
    experts_per_token: Annotated[int, bounded("training.model.expertsPerToken", 1, 64, "8 is DeepSeek-V3")] = 2
    """Routed experts that a token uses."""
    expert_groups: Annotated[int, bounded("training.model.expertGroups", 1, 256, "8 is DeepSeek-V3")] = 2
    """Groups that the routed experts are divided into."""
    top_groups: Annotated[int, bounded("training.model.topGroups", 1, 256, "4 is DeepSeek-V3")] = 1
    """Groups of experts that a token may use."""
    bias_update_rate: Annotated[float, bounded("training.model.biasUpdateRate", 0, 1, "0 turns it off")] = 0.001
    """Step of the router bias towards balanced experts after each optimizer step (aux-loss-free balancing)."""

    def parameters(self) -> int:
        """Trainable parameters, exactly as transformers builds them with untied embeddings and no attention bias."""
        head = self.query_rope_size + self.query_nope_size
        width = self.hidden_size
        if self.query_rank:
            query = width * self.query_rank + self.query_rank + self.query_rank * self.attention_heads * head
        else:
            query = width * self.attention_heads * head
        key_value = width * (self.key_value_rank + self.query_rope_size) + self.key_value_rank
        key_value += self.key_value_rank * self.attention_heads * (self.query_nope_size + self.value_size)
        attention = query + key_value + self.attention_heads * self.value_size * width
        dense = 3 * width * self.dense_size
        expert = 3 * width * self.expert_size
        mixture = (self.routed_experts + self.shared_experts) * expert + self.routed_experts * width
        layers = self.layers * (attention + 2 * width)
        layers += self.dense_layers * dense + (self.layers - self.dense_layers) * mixture
        return layers + 2 * self.vocabulary_size * width + width


class Data(Schema):
    """Token shards made by `python -m ciuic_trainer.train.tokenize TEXT FOLDER`."""

    path: Annotated[str, Field(min_length=1, max_length=1024)] = "/opt/ciuic/data/kjv"
    """Folder in the pod that holds manifest.json, tokenizer.json and the shards. The image brings the default."""


class Evaluation(Schema):
    """Loss on the held-out part of the data."""

    every_steps: Annotated[int, bounded("training.evaluation.everySteps", 0, 10**9, "0 turns evaluation off")] = 20
    """Optimizer steps from one evaluation to the next."""
    batches: Annotated[int, bounded("training.evaluation.batches", 1, 10**6, "4 is enough for a curve")] = 4
    """Batches per evaluation, each of microBatchSize samples on every rank."""


class Training(Schema):
    """The built-in DeepSpeed ZeRO-3 trainer."""

    steps: Annotated[int, bounded("training.steps", 1, 10**9, "it is the number of optimizer steps")]
    """Optimizer steps after which the job is complete."""
    model: Model = Model()
    data: Data = Data()
    sequence_length: Annotated[int, bounded("training.sequenceLength", 8, 1048576, "4096 is common")] = 64
    """Tokens per sample."""
    micro_batch_size: Annotated[int, bounded("training.microBatchSize", 1, 65536, "lower it if memory is short")] = 4
    """Samples per rank and micro-step."""
    gradient_accumulation: Annotated[
        int, bounded("training.gradientAccumulation", 1, 65536, "1 means every micro-step updates")
    ] = 1
    """Micro-steps per optimizer step."""
    accumulation: Accumulation = Accumulation()
    precision: Precision = Precision.AUTO
    """Of the forward and backward pass; auto: bf16 on an accelerator, fp32 on a CPU, where that is twice as fast. fp16 comes with
    a loss scale that finds its own way. Master weights and optimizer state are always fp32."""
    learning_rate: LearningRate = LearningRate()
    weight_decay: Annotated[float, bounded("training.weightDecay", 0, 1, "0.1 is common")] = 0.1
    """Of AdamW."""
    gradient_clipping: Annotated[float, bounded("training.gradientClipping", 0, 1e6, "0 turns clipping off")] = 1.0
    """Highest norm of the gradient over all parameters."""
    guards: Guards = Guards()
    seed: Annotated[int, bounded("training.seed", 0, 2**31 - 1, "any integer will do")] = 42
    """Of initialisation and data order."""
    deterministic: bool = False
    """The same bits at every run with the same ranks and devices, also on accelerators, where it costs some speed: fixed
    algorithms in cuBLAS, cuDNN and NCCL, and no atomic additions. On a CPU it is always so."""
    evaluation: Evaluation = Evaluation()
    deepspeed: DeepSpeed | None = None

    def resolved(self) -> Self:
        """With the fields that `deepspeed` replaces."""
        if self.deepspeed is None:
            return self
        given = {
            "micro_batch_size": self.deepspeed.train_micro_batch_size_per_gpu,
            "gradient_accumulation": self.deepspeed.gradient_accumulation_steps,
            "gradient_clipping": self.deepspeed.gradient_clipping,
            "precision": self.deepspeed.precision(),
        }
        return self.model_copy(update={name: value for name, value in given.items() if value is not None})


FIXED_FIELDS = ("model", "data", "sequenceLength", "seed")
"""Fields of `training` that never change in a job's life, as checkpoints fit one value of them (`ciuic_api.contract`); the
others may change while it is suspended."""
