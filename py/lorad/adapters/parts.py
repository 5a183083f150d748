"""Keys of what an adapter may have beside pairs of A and B in a layer's projections.

…q_proj.lora_magnitude_vector[.adapter][.weight]      DoRA's magnitudes
…q_proj.lora_B[.adapter].bias                         a bias of B (`lora_bias`)
…q_proj[.base_layer].bias                             a trained bias of the base (`bias`)
…embed_tokens.lora_embedding_A[.adapter]              pairs of the embedding
…lm_head.lora_A[.adapter].weight                      pairs of the head
…lm_head[.modules_to_save[.adapter]].weight           trained in full (`modules_to_save`), likewise of the embedding
…embed_tokens.token_adapter.trainable_tokens_delta    trained rows (`trainable_token_indices`), likewise of the head
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lorad.adapters.keys import Target, module_path
from lorad.adapters.peft_config import PeftConfig
from lorad.adapters.read import AdapterFiles
from lorad.adapters.reject import reject
from lorad.adapters.trained import trained_rows
from lorad.models.config import BIASED, VOCABULARY, ModelConfig

NEED_BASE = ("magnitude", "bias", "whole", "rows")
"""Parts that mean something only together with the base's weights."""

_MODULE = (
    r"(?:base_model\.model\.)*(?:model\.)?"
    r"(?P<path>layers\.(?P<layer>0|[1-9][0-9]{0,8})\.(?:self_attn|mlp)\.(?P<name>[a-z]+_proj)|embed_tokens|lm_head)\."
)
_ADAPTER = r"(?:\.(?P<adapter>[^.]+))?"
_PARTS = (
    ("magnitude", re.compile(_MODULE + r"lora_magnitude_vector(?:\.(?P<adapter>(?!weight$)[^.]+))?(?:\.weight)?")),
    ("lora_bias", re.compile(_MODULE + rf"lora_[Bb]{_ADAPTER}\.bias")),
    ("bias", re.compile(_MODULE + r"(?:base_layer\.)?bias(?P<adapter>)")),
    ("whole", re.compile(_MODULE + rf"(?:modules_to_save{_ADAPTER}\.)?weight")),
    ("rows", re.compile(_MODULE + rf"token_adapter\.trainable_tokens_delta{_ADAPTER}")),
    ("half", re.compile(_MODULE.replace("embed_tokens|", "") + rf"lora_(?P<half>[ABab]){_ADAPTER}\.weight")),
    (
        "half",
        re.compile(
            _MODULE.replace("|lm_head", "") + r"lora_embedding_(?P<half>[ABab])(?:\.(?P<adapter>(?!weight$)[^.]+))?"
        ),
    ),
)


def parse_part(key: str) -> Target | None:
    """What a key means, in any supported base; None if it's none of those above. `Target.half` is A, B or the part."""
    for part, pattern in _PARTS:
        match = pattern.fullmatch(key)
        if match is None:
            continue
        name = match["name"] or match["path"]
        layer = int(match["layer"] or 0)
        if module_path(layer, name) not in (match["path"], f"model.{match['path']}"):
            return None
        if part in ("half", "whole", "rows") and match["layer"]:
            return None
        half = match["half"].upper() if part == "half" else part
        return Target(layer, name, half, match["adapter"] or "")
    return None


def check_parts(
    files: AdapterFiles, config: ModelConfig, peft: PeftConfig, modules: Mapping[tuple[int, int], Mapping[str, str]]
) -> None:
    """What `adapter_config.json` promises is there, in the base's shapes, and nothing else.

    `modules`: the keys of each (layer, module)'s tensors, by part.
    """
    adaptable = config.adaptable()
    for (_, number), keys in modules.items():
        module = adaptable[number]
        for part, field, promised in (("magnitude", "use_dora", peft.dora), ("lora_bias", "lora_bias", peft.lora_bias)):
            if part in keys and not promised:
                meaning = "belongs to DoRA" if part == "magnitude" else "is a bias of LoRA (lora_bias)"
                raise reject("adapter_feature", f"tensor {keys[part]} {meaning}, but {field} isn't true in the config")
            if part in keys and "A" not in keys:
                raise reject("adapter_pair", f"tensor {keys[part]} is there without lora_A and lora_B")
            # PEFT has no bias of B for embeddings: it refuses to make such an adapter.
            if promised and part not in keys and "A" in keys:
                raise reject("adapter_pair", f"tensor {keys['A']} has no {_NAMES[part]} beside it, but {field} is true")
        has_bias = config.qkv_bias and module.name in BIASED
        if "bias" in keys and peft.bias == "none":
            raise reject(
                "adapter_feature", f"tensor {keys['bias']} is a trained bias, but bias is 'none' in the config"
            )
        if "bias" in keys and not has_bias:
            raise reject("adapter_tensor", f"tensor {keys['bias']} is a trained bias, the base has none there")
        if has_bias and "bias" not in keys and peft.bias == "lora_only" and "A" in keys:
            raise reject("adapter_pair", f"tensor {keys['A']} has no trained bias beside it, but bias is 'lora_only'")
        for part in ("magnitude", "lora_bias", "bias"):
            if part in keys and files.entries[keys[part]].shape != (module.out_features,):
                raise reject(
                    "adapter_shape",
                    f"tensor {keys[part]} has the shape {list(files.entries[keys[part]].shape)}, the base wants "
                    f"[{module.out_features}]: the adapter was trained on another base",
                )
    check_vocabulary(files, config, peft, {adaptable[number].name: keys for (_, number), keys in modules.items()})
    halves = {adaptable[number].name for (_, number), keys in modules.items() if "A" in keys} & {*VOCABULARY}
    if config.tie_embeddings and files.config.get("ensure_weight_tying") and len(halves) == 1:
        raise reject("adapter_pair", f"ensure_weight_tying is true, but only {halves.pop()} has lora_A and lora_B")
    if peft.bias == "all" and config.qkv_bias:
        for layer in range(config.layers):
            for number, module in enumerate(config.modules()):
                if module.name in BIASED and "bias" not in modules.get((layer, number), {}):
                    path = module_path(layer, module.name)
                    raise reject("adapter_pair", f"bias is 'all', but the file has no bias of {path}")


def check_vocabulary(
    files: AdapterFiles, config: ModelConfig, peft: PeftConfig, modules: Mapping[str, Mapping[str, str]]
) -> None:
    """Likewise, of what was trained of the embedding and the head themselves. `modules`: by name."""
    rows = trained_rows(peft, is_tied=config.tie_embeddings)
    if config.tie_embeddings and files.config.get("ensure_weight_tying") and len(peft.whole) == 1:
        (name,) = peft.whole
        raise reject("adapter_feature", f"ensure_weight_tying is true, but modules_to_save has only {name}")
    for name in VOCABULARY:
        keys = modules.get(name, {})
        for part, field, promised in (
            ("whole", "modules_to_save", name in peft.whole),
            ("rows", "trainable_token_indices", name in rows),
        ):
            if promised and part not in keys:
                raise reject("adapter_pair", f"{field} has {name}, but the file has no tensor of it")
            if part in keys and not promised:
                raise reject("adapter_feature", f"tensor {keys[part]} belongs to {field}, which has no {name}")
            if part in keys and len(keys) > 1:
                other = next(key for other, key in keys.items() if other != part)
                raise reject("adapter_feature", f"tensors {keys[part]} and {other}: {name} can't have both")
        if "whole" in keys and files.entries[keys["whole"]].shape != (config.vocab, config.hidden):
            found = list(files.entries[keys["whole"]].shape)
            raise reject(
                "adapter_shape", f"tensor {keys['whole']} has the shape {found}, wants {[config.vocab, config.hidden]}"
            )
        if "rows" in keys:
            ids, found = rows[name].ids, list(files.entries[keys["rows"]].shape)
            if found != [len(ids), config.hidden]:
                raise reject(
                    "adapter_shape", f"tensor {keys['rows']} has the shape {found}, wants {[len(ids), config.hidden]}"
                )
            if max(ids) >= config.vocab:
                raise reject(
                    "adapter_added_tokens",
                    f"trainable_token_indices has {max(ids)}, the base has {config.vocab} tokens: added tokens aren't "
                    "supported",
                )


_NAMES = {"magnitude": "lora_magnitude_vector", "lora_bias": "bias of lora_B"}
