"""The support table: what an adapter file may have, whether it's applied, and what to do where it isn't.

One row per feature. `peft_config`, `keys` and the readers take their refusals from here, docs/adapters.md is made from
it (`document`), and tests/test_adapter_support.py has a case for each row, so that the three can't differ.
"""

from __future__ import annotations

from typing import NamedTuple


class Feature(NamedTuple):
    """A row."""

    name: str
    where: str
    """How a file says it: a field, a tensor, a file."""
    code: str = ""
    """Of the refusal; empty if it's supported."""
    reason: str = ""
    """Of the refusal, or what to know."""
    todo: str = ""
    """What somebody who has such a file can do."""

    @property
    def refusal(self) -> str:
        """The end of a refusal's message."""
        return f"{self.reason}. {self.todo}" if self.todo else self.reason


_FEATURE = "adapter_feature"
_RETRAIN = "Train without it"
_MERGE = "Merge it into a model of its own, where PEFT can (merge_and_unload), and serve that"

FORMATS = (
    Feature("PEFT safetensors", "`adapter_config.json`, `adapter_model.safetensors`"),
    Feature(
        "PEFT safetensors in parts",
        "`adapter_model-00001-of-00002.safetensors` …, `adapter_model.safetensors.index.json`",
        reason="the index must name every part and every tensor",
    ),
    Feature(
        "parts that don't belong together",
        "no index, a part missing or left over, tensors elsewhere than the index says",
        "adapter_split",
        "what is there isn't what was saved",
        "Save it again, or as one file",
    ),
    Feature(
        "llama.cpp GGUF",
        "a `.gguf` file, or a folder with one, of `general.type` adapter",
        reason="as llama.cpp applies it, scale alpha / rank: its converter drops `use_rslora` and `alpha_pattern`",
    ),
    Feature(
        "GGUF for another architecture",
        "`general.architecture` isn't the base's",
        "adapter_base",
        "it was made for another architecture",
        "Convert the adapter of this base",
    ),
    Feature(
        "MLX",
        "`adapters.safetensors`, `adapter_config.json` with `lora_parameters`",
        reason="scale multiplies directly, as in mlx-lm",
    ),
    Feature(
        "pickle",
        "`adapter_model.bin`, `*.pt`, `*.pth`",
        "adapter_missing",
        "is a pickle, which can run code",
        "Save the adapter as safetensors (PEFT: save_pretrained(…, safe_serialization=True))",
    ),
    Feature(
        "Kohya's spelling",
        "tensors `lora_unet_…`, `lora_te_…`, `….lora_down.weight`, `….lora_up.weight`, `….alpha`",
        _FEATURE,
        "is spelt as Kohya's and diffusers' scripts do, mostly for images",
        "For a language model, rename lora_down and lora_up to lora_A and lora_B with PEFT's module names and put "
        "alpha into adapter_config.json",
    ),
)
"""Files."""

PEFT = (
    Feature("rank and alpha", "`r`, `lora_alpha`", reason="every rank up to `--max-lora-rank`, any finite alpha"),
    Feature("rank-stabilised scale", "`use_rslora`"),
    Feature("ranks and alphas by module", "`rank_pattern`, `alpha_pattern`", reason="matched as PEFT matches them"),
    Feature(
        "any modules, any layers",
        "`target_modules` (list, name, expression, `all-linear`), `exclude_modules`, `layers_to_transform`, "
        "`layers_pattern`",
        reason="the tensors decide; modules that are named and have no tensors are told in a warning",
    ),
    Feature(
        "tensors that the config leaves out",
        "the same fields",
        "adapter_target",
        "PEFT would drop them",
        "Correct the config, or remove the tensors",
    ),
    Feature(
        "other spellings of keys",
        "no prefix, `base_model.model.` twice, `lora_a`, the adapter's name inside",
        reason="mapped to the same modules",
    ),
    Feature(
        "transposed weights",
        "`fan_in_fan_out`",
        reason="says nothing about the linear modules that all bases here have, as in PEFT",
    ),
    Feature(
        "plain beginnings",
        "`init_lora_weights`: true, false, `gaussian`, `eva`, `orthogonal`, `mica`",
        reason="the base stays as it is",
    ),
    Feature("DoRA", "`use_dora`", reason="norms are those of the base as it's served"),
    Feature("a bias of LoRA", "`lora_bias`"),
    Feature("trained biases", "`bias`: `all`, `lora_only`", reason="of q, k and v, where the base has them"),
    Feature(
        "modules trained in full",
        "`modules_to_save` of `embed_tokens`, `lm_head`",
        reason="kept as the difference to the base's, in f32: a pair of the rank of the hidden size",
    ),
    Feature(
        "trainable tokens", "`trainable_token_indices` of `embed_tokens`, `lm_head`", reason="a rank for each token"
    ),
)
"""adapter_config.json: what decides the numbers."""

_CONVERT = (
    "PEFT converts it where it was trained: save_pretrained(…, path_initial_model_for_weight_conversion=FOLDER), "
    "FOLDER being the adapter saved before the training; or serve the changed base, saved there, and set "
    "init_lora_weights to true"
)
STARTS = {
    "pissa": Feature(
        "PiSSA",
        "`init_lora_weights`: `pissa`, `pissa_niter_…`",
        _FEATURE,
        "it was trained against a base without its largest singular parts",
        _CONVERT,
    ),
    "olora": Feature(
        "OLoRA",
        "`init_lora_weights`: `olora`",
        _FEATURE,
        "it was trained against a base without the first columns of its QR",
        _CONVERT,
    ),
    "corda": Feature(
        "CorDA",
        "`init_lora_weights`: `corda`",
        _FEATURE,
        "it was trained against a base without parts chosen by data",
        _CONVERT,
    ),
    "lora_ga": Feature(
        "LoRA-GA",
        "`init_lora_weights`: `lora_ga`",
        _FEATURE,
        "it was trained against a base without what it began with",
        _CONVERT,
    ),
    "loftq": Feature(
        "LoftQ",
        "`init_lora_weights`: `loftq`",
        _FEATURE,
        "it was trained against a base that was quantised together with it, which PEFT can't convert",
        "Serve that base, saved where it was trained, and set init_lora_weights to true",
    ),
}
"""By what init_lora_weights begins with. These change the base: the file as it is holds half of what was trained."""

FIELDS = {
    "target_parameters": Feature(
        "LoRA on parameters",
        "`target_parameters`",
        _FEATURE,
        "LoRA on parameters that aren't modules isn't supported",
        _MERGE,
    ),
    "layer_replication": Feature(
        "replicated layers", "`layer_replication`", _FEATURE, "replicated layers aren't supported", _MERGE
    ),
    "alora_invocation_tokens": Feature(
        "activated LoRA (aLoRA)",
        "`alora_invocation_tokens`",
        _FEATURE,
        "activated LoRA (aLoRA) isn't supported",
        _RETRAIN,
    ),
    "use_qalora": Feature("QALoRA", "`use_qalora`", _FEATURE, "QALoRA isn't supported", _RETRAIN),
    "use_bdlora": Feature("BD-LoRA", "`use_bdlora`", _FEATURE, "BD-LoRA isn't supported", _MERGE),
    "megatron_config": Feature(
        "Megatron's layers", "`megatron_config`", _FEATURE, "Megatron's layers aren't supported", _RETRAIN
    ),
    "arrow_config": Feature("Arrow routing", "`arrow_config`", _FEATURE, "Arrow routing isn't supported", _RETRAIN),
    "kasa_config": Feature("KaSA", "`kasa_config`", _FEATURE, "KaSA isn't supported", _MERGE),
    "monteclora_config": Feature("MonteCLoRA", "`monteclora_config`", _FEATURE, "MonteCLoRA isn't supported", _RETRAIN),
    "velora_config": Feature("VeLoRA", "`velora_config`", _FEATURE, "VeLoRA isn't supported", _RETRAIN),
}
"""Fields of adapter_config.json whose active value is refused; so is that of a field that isn't known."""

DORA_WITH_BIAS = Feature(
    "DoRA with a bias of LoRA",
    "`use_dora` and `lora_bias`",
    _FEATURE,
    "PEFT doesn't have both, so what they mean together isn't known",
    _RETRAIN,
)
UNKNOWN_BIAS = Feature(
    "other biases", "`bias`: any other value", _FEATURE, "none, all and lora_only are what PEFT has", _RETRAIN
)
OTHER_WHOLE = Feature(
    "other modules trained in full",
    "`modules_to_save`, `trainable_token_indices` of anything but `embed_tokens` and `lm_head`",
    _FEATURE,
    "only embed_tokens and lm_head are supported in full or by tokens",
    _MERGE,
)
OTHER_METHOD = Feature("methods other than LoRA", "`peft_type`", _FEATURE, "only LORA is supported", _MERGE)
UNKNOWN_FIELD = Feature(
    "fields that aren't known",
    "any other field with an active value",
    _FEATURE,
    "isn't known, so whether it changes the weights isn't either",
    "Remove the field if it has to do with the training only",
)
UNKNOWN_START = Feature(
    "beginnings that aren't known",
    "`init_lora_weights`: any other value",
    _FEATURE,
    "isn't known, so whether it changes the base isn't either",
    "If it leaves the base as it is, set init_lora_weights to true",
)
MLX = (
    Feature("MLX: DoRA", "`fine_tune_type`: `dora`", _FEATURE, "DoRA isn't supported", _MERGE),
    Feature(
        "MLX: full",
        "`fine_tune_type`: `full`",
        _FEATURE,
        "it's a whole model's weights, not an adapter",
        "Serve it as a model",
    ),
    Feature(
        "MLX: alpha",
        "`lora_parameters.alpha`",
        _FEATURE,
        "old versions of mlx-lm multiply scale by alpha / rank, newer ones don't look at it",
        "Write the scale that was trained with into lora_parameters.scale and remove alpha",
    ),
    Feature(
        "MLX: LoRA on the embedding",
        "tensors `model.embed_tokens.lora_a`, `lora_b`",
        _FEATURE,
        "is LoRA on the embedding, which MLX applies at a tied output too and isn't supported",
        "Train without it",
    ),
)
"""adapter_config.json of MLX."""

TENSORS = (
    Feature("numbers of 16 and 32 bits", "F32, F16, BF16, mixed too", reason="kept as they are; mixed: the widest"),
    Feature(
        "floats of 8 bits",
        "F8_E4M3, F8_E5M2",
        reason="widened exactly to the 16-bit type of the file's other tensors, else bf16",
    ),
    Feature(
        "scaled floats of 8 bits",
        "tensors `…_scale`, `…_scale_inv` beside them",
        _FEATURE,
        "is a scale beside scaled 8-bit weights, which aren't supported",
        "Save the adapter in bf16",
    ),
    Feature(
        "quantised GGUF tensors",
        "Q8_0 and llama.cpp's other types",
        reason="dequantised exactly to f32",
    ),
    Feature(
        "other number types",
        "F64, integers",
        "adapter_dtype",
        "isn't a number type that adapters have",
        "Save the adapter in f32 or a type of 16 bits",
    ),
    Feature("LoRA on the embedding", "tensors `embed_tokens.lora_embedding_A`, `_B`", reason="where PEFT applies it"),
    Feature("LoRA on the output", "tensors `lm_head.lora_A`, `_B`", reason="of tied bases too, as its own"),
    Feature(
        "copies of the base's weights",
        "tensors `embed_tokens.weight`, `lm_head.weight`",
        reason="number by number the base's own, as PEFT saves them along",
    ),
    Feature(
        "GGUF: LoRA on the embedding",
        "tensors `token_embd.weight.lora_a`, `.lora_b`",
        _FEATURE,
        "is LoRA on the embedding, which llama.cpp may apply at a tied output too and isn't supported",
        "Serve the PEFT folder that it was converted from",
    ),
    Feature(
        "whole weights",
        "tensors without `lora_`",
        _FEATURE,
        "is a whole weight of the base, not a LoRA one",
        "If it's the base's own, unchanged, remove it from the file (PEFT: save_embedding_layers=False); if it was "
        "trained, it can't be applied",
    ),
    Feature(
        "added tokens",
        "more rows than the base's vocabulary, or such ids in the tokenizer's files",
        "adapter_added_tokens",
        "added tokens aren't supported",
        _MERGE,
    ),
)

ROWS: tuple[tuple[str, tuple[Feature, ...]], ...] = (
    ("Files", FORMATS),
    (
        "PEFT's adapter_config.json",
        (
            *PEFT,
            *STARTS.values(),
            UNKNOWN_START,
            OTHER_WHOLE,
            DORA_WITH_BIAS,
            UNKNOWN_BIAS,
            *FIELDS.values(),
            OTHER_METHOD,
            UNKNOWN_FIELD,
        ),
    ),
    ("MLX's adapter_config.json", MLX),
    ("Tensors", TENSORS),
)
"""The table's parts."""

BY_NAME = {row.name: row for _, rows in ROWS for row in rows}
