"""The base that an adapter's own tensors imply, where none is given: enough to hold them against each other."""

from __future__ import annotations

from collections.abc import Mapping

from lorad.adapters.keys import parse_key, vocabulary_rows
from lorad.adapters.parts import parse_part
from lorad.adapters.reject import reject
from lorad.models.config import EMBED, HEAD, INTEGER_MAX, LAYERS_MAX, ModelConfig
from lorad.models.safetensors_file import Entry

_SIDES = {
    "q_proj": ("hidden", "queries"),
    "k_proj": ("hidden", "keys"),
    "v_proj": ("hidden", "keys"),
    "o_proj": ("queries", "hidden"),
    "gate_proj": ("hidden", "intermediate"),
    "up_proj": ("hidden", "intermediate"),
    "down_proj": ("intermediate", "hidden"),
    EMBED: ("vocab", "hidden"),
    HEAD: ("hidden", "vocab"),
}
"""What a module's inputs and outputs are called."""
_HEAD_DIM = 2
"""The least; how outputs are divided into heads has no say here."""
_ANY = 2


def implied_base(entries: Mapping[str, Entry]) -> ModelConfig:
    """Of the first tensor that tells a size; others that differ are refused by `check` then."""
    sizes: dict[str, int] = {}
    layers, vocab = 1, INTEGER_MAX // 2
    for key, entry in entries.items():
        vocab = vocabulary_rows(key, entry) or vocab
        target = parse_key(key) or parse_part(key)
        if target is None or target.half not in ("A", "B") or len(entry.shape) != 2:
            continue
        layers = max(layers, target.layer + 1)
        inputs, outputs = _SIDES[target.name]
        if target.half == "A":
            sizes.setdefault(inputs, entry.shape[1])
        else:
            sizes.setdefault(outputs, entry.shape[0])
    if layers > LAYERS_MAX:
        raise reject("adapter_shape", f"a tensor is for layer {layers - 1}, no base has more than {LAYERS_MAX} layers")
    vocab = sizes.pop("vocab", vocab)
    queries = sizes.get("queries", sizes.get("keys", _ANY))
    keys = sizes.get("keys", queries)
    # An adapter of k alone is for a base of at least as many outputs of q.
    if min(queries, keys) < _HEAD_DIM or queries % _HEAD_DIM or keys % _HEAD_DIM or queries % keys:
        raise reject("adapter_shape", f"q has {queries} outputs, k and v have {keys}: they fit no base")
    for name, size in sizes.items():
        if not 0 < size < INTEGER_MAX:
            raise reject("adapter_shape", f"{name} of size {size}: they fit no base")
    return ModelConfig(
        architecture="llama",
        layers=layers,
        hidden=sizes.get("hidden", _ANY),
        heads=queries // _HEAD_DIM,
        kv_heads=keys // _HEAD_DIM,
        head_dim=_HEAD_DIM,
        intermediate=sizes.get("intermediate", _ANY),
        vocab=vocab,
        norm_eps=1e-5,
        rope_theta=1e4,
        rope_scaling=None,
        tie_embeddings=False,
        context_length=1,
        bos_ids=(),
        eos_ids=(),
        name="",
    )
