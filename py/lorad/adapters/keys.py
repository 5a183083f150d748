"""From a tensor's key to the place in the base that it adapts: full paths only, known spellings only.

`[base_model.model.]{0,4}[model.]layers.N.self_attn.q_proj.lora_A[.adapter].weight`, with lora_a and lora_b too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lorad.adapters.features import BY_NAME, Feature
from lorad.adapters.patterns import PATH_LENGTH_MAX
from lorad.models.config import HEAD, VOCABULARY, ModelConfig
from lorad.models.safetensors_file import Entry

_PREFIX = "base_model.model."
"""What PEFT puts before the names of the model that it adapts."""
_KEY = re.compile(
    r"(?:base_model\.model\.){0,4}(?:model\.)?layers\.(?P<layer>0|[1-9][0-9]{0,8})\.(?P<parent>self_attn|mlp)\."
    r"(?P<name>[a-z]+_proj)\.lora_(?P<half>[ABab])(?:\.(?P<adapter>[^.]+))?\.weight"
)
_PARENTS = {name: "self_attn" for name in ("q_proj", "k_proj", "v_proj", "o_proj")} | {
    name: "mlp" for name in ("gate_proj", "up_proj", "down_proj")
}
_VOCABULARY = re.compile(r"(?:.*\.)?(embed_tokens|lm_head)(?:\.modules_to_save)?(?:\.[^.]+)?\.weight")


class Target(NamedTuple):
    """Half of a pair and the projection it belongs to."""

    layer: int
    """0 for the embedding and the head."""
    name: str
    """A name of `ModelConfig.adaptable()`."""
    half: str
    """A or B, or one of `parts`."""
    adapter: str
    """The adapter's name inside the key, or empty."""


def parse_key(key: str) -> Target | None:
    """What a key means, in any supported base; None if it isn't a LoRA half of a layer's projection."""
    match = _KEY.fullmatch(key)
    if match is None or _PARENTS.get(match["name"]) != match["parent"]:
        return None
    return Target(int(match["layer"]), match["name"], match["half"].upper(), match["adapter"] or "")


def module_path(layer: int, name: str) -> str:
    """The module's name in Hugging Face's module tree, which PEFT's patterns are matched against; or empty."""
    if name in VOCABULARY:
        return "lm_head" if name == HEAD else f"model.{name}"
    if name not in _PARENTS:
        return ""
    return f"model.layers.{layer}.{_PARENTS[name]}.{name}"


def path_in_model(key: str) -> tuple[str, str]:
    """The module that a LoRA key belongs to, in the module tree that PEFT saw (as far as the key tells), and in Hugging
    Face's."""
    spelt, _, _ = key.removeprefix(_PREFIX).partition(".lora_")
    inside = spelt[spelt.rfind(_PREFIX) + len(_PREFIX) :] if _PREFIX in spelt else spelt
    usual = inside if inside.startswith(("model.", "lm_head")) else f"model.{inside}"
    return (spelt if key.startswith(_PREFIX) else usual), usual


def pattern_path(key: str) -> str:
    """The name that PEFT's patterns are matched against, no longer than `PATH_LENGTH_MAX`."""
    spelt, usual = path_in_model(key)
    return spelt if len(spelt) <= PATH_LENGTH_MAX else usual


def vocabulary_rows(key: str, entry: Entry) -> int | None:
    """Rows of a whole embedding or output matrix; None for any other tensor."""
    if _VOCABULARY.fullmatch(key) and ".lora_" not in key and len(entry.shape) == 2:
        return entry.shape[0]
    return None


def explain(key: str, config: ModelConfig) -> tuple[str, str]:
    """(code, reason) for a key that nothing is done with."""
    for mark, feature, reason in _FEATURES:
        if re.search(mark, key):
            return feature.code, f"{reason}. {feature.todo}"
    if "lora_" not in key and (_VOCABULARY.fullmatch(key) or key.endswith((".weight", ".bias"))):
        return (BY_NAME["whole weights"].code, f"{BY_NAME['whole weights'].refusal}")
    return (
        "adapter_tensor",
        f"corresponds to nothing in the base, whose modules are called model.layers.0.self_attn.q_proj … "
        f"model.layers.{config.layers - 1}.mlp.down_proj",
    )


def _mark(mark: str, name: str, reason: str = "") -> tuple[str, Feature, str]:
    return mark, BY_NAME[name], reason or BY_NAME[name].reason


_FEATURES = (
    _mark(
        r"modules_to_save",
        "other modules trained in full",
        "was trained in full (modules_to_save), which isn't supported",
    ),
    _mark(
        r"trainable_tokens",
        "other modules trained in full",
        "belongs to trainable tokens of something else than the embedding and the head",
    ),
    _mark(r"^lora_(unet|te\d?)_|\.lora_(down|up)\.|\.lora\.(down|up)\.|\.alpha$", "Kohya's spelling"),
    _mark(
        r"(^|[._])(weight_)?scale(_inv)?$|scale_weight$|_scales?$|input_scale$",
        "scaled floats of 8 bits",
    ),
    _mark(
        r"vera_|ia3_l|hada_|lokr_|oft_|boft_|randlora_|prompt_embeddings",
        "methods other than LoRA",
        "belongs to a method other than LoRA",
    ),
)
"""What other keys are told by: where in the key, the row of the support table, what to say."""
