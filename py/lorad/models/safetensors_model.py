"""A base model in a Hugging Face folder: config.json and one or several safetensors files, mapped into memory."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lorad.errors import ModelRejected
from lorad.models.config import BIASED, ModelConfig
from lorad.models.fields import shown
from lorad.models.files import file_digest
from lorad.models.grouped import PARTS, GroupedTensor, Part
from lorad.models.grouped_config import grouped_format
from lorad.models.hf_config import config_from_hf
from lorad.models.safetensors_file import FLOATS, Entry, read_header
from lorad.models.weights import Place, RawTensor, check_names, check_shape
from lorad.named_file import read_json

_PLAIN = {"model.embed_tokens.weight": "embed", "model.norm.weight": "norm", "lm_head.weight": "head"}
_IN_LAYER = {
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "post_norm",
    **{f"self_attn.{name}": name for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")},
    **{f"mlp.{name}": name for name in ("gate_proj", "up_proj", "down_proj")},
}
_BRANCH_NORMS = {
    "post_attention_layernorm": "attention_out_norm",
    "pre_feedforward_layernorm": "post_norm",
    "post_feedforward_layernorm": "mlp_out_norm",
}
"""Names in the families with norms on the branches, where `post_attention_layernorm` is another norm than Llama's."""
_DERIVED = ".rotary_emb.inv_freq"
"""Rotary frequencies that old versions stored; they follow from the config."""
JSON_BYTES_MAX = 64 << 20
"""Of a config or an index, which names every tensor."""
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_CONFIGS = ("config.json", "quantize_config.json")
"""The second one is older GPTQ folders'."""
_OLDER = "gptq_model-*.safetensors"
"""What these call their one file."""


class SafetensorsWeights:
    """A checked folder; see `Weights`."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        raw = _json(self._path / _CONFIGS[0])
        self._configs = [file for name in _CONFIGS if (file := self._path / name).is_file()]
        grouped = grouped_format(raw, *(_json(file) for file in self._configs[1:]))
        raw.pop("quantization_config", None)
        config = config_from_hf(raw, str(raw.get("_name_or_path") or "") or self._path.resolve().name)
        self._files = [self._path / name for name in _files(self._path)]
        self._places: dict[str, tuple[Path, NDArray[np.uint8], Entry]] = {}
        in_layer = _IN_LAYER | _BRANCH_NORMS if config.branch_norms else _IN_LAYER
        for file in self._files:
            self._add(file, in_layer)
        if config.tie_embeddings and "head" in self._places:
            if not np.array_equal(self._bytes("head"), self._bytes("embed")):
                raise ModelRejected(
                    "config.json ties the output to the embedding, but lm_head.weight differs from it",
                    code="model_tensor_unknown",
                )
            del self._places["head"]
        parts = {} if grouped is None else self._take_parts(config)
        check_names(config, [*self._places, *parts])
        self._grouped = {
            name: GroupedTensor(name, grouped, config.shapes()[name], found) for name, found in parts.items() if grouped
        }
        for name, shape in config.shapes().items():
            if name in self._grouped:
                continue
            entry = self._places[name][2]
            check_shape(name, entry.shape, shape)
            if entry.dtype not in FLOATS:
                raise ModelRejected(f"tensor {name} of type {entry.dtype} can't be read", code="model_tensor_type")
        self._config = config

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self._config

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    @cached_property
    def digest(self) -> str:
        """sha256 over the digests of the configs and of each weights file, by name."""
        state = hashlib.sha256()
        for file in sorted([*self._configs, *self._files]):
            state.update(f"{file_digest(file)}  {file.name}\n".encode())
        return state.hexdigest()

    def tensor(self, name: str) -> RawTensor:
        """The tensor with this canonical name, a view of the mapped file; of a grouped one a copy, as blocks."""
        if name in self._grouped:
            return self._grouped[name].raw()
        entry = self._places[name][2]
        rows = entry.shape[0] if len(entry.shape) == 2 else 1
        return RawTensor(entry.dtype, self._bytes(name).reshape(rows, -1), entry.shape)

    def place(self, name: str) -> Place:
        """Where the tensor with this canonical name lies in the folder. Grouped ones lie in parts, in no one place."""
        if name in self._grouped:
            raise ModelRejected(f"tensor {name} lies in parts: it can't be rewritten in place", code="model_feature")
        file, _, entry = self._places[name]
        return Place(file, entry.begin, None)

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        _, data, entry = self._places[name]
        return data[entry.begin : entry.end]

    def _floats(self, key: str) -> NDArray[np.float32]:
        entry = self._places[key][2]
        if entry.dtype not in FLOATS:
            raise ModelRejected(f"tensor {key} of type {entry.dtype} can't be read", code="model_tensor_type")
        return RawTensor(entry.dtype, self._bytes(key).reshape(1, -1), entry.shape).values()

    def _take_parts(self, config: ModelConfig) -> dict[str, dict[str, Part]]:
        """The parts of grouped weights, by the weights' names. Those of no matrix of the model stay where they are."""
        matrices = {name for name, shape in config.shapes().items() if len(shape) == 2}
        found: dict[str, dict[str, Part]] = {}
        for key in list(self._places):
            name, _, part = key.rpartition(".")
            if part == "bias" and key not in config.shapes() and not self._floats(key).any():
                del self._places[key]  # GPTQ's writers give every matrix one, of zeros
            if part not in PARTS or name not in matrices:
                continue
            if name in self._places:
                raise ModelRejected(f"{name} is there as a weight and in four bits", code="model_tensor_unknown")
            data = self._bytes(key)
            found.setdefault(name, {})[part] = Part(self._places.pop(key)[2], data)
        return found

    def _add(self, file: Path, in_layer: dict[str, str]) -> None:
        try:
            with open(file, "rb") as opened:
                entries = read_header(opened)
                # Copy on write: torch wants writable memory and nothing writes, so no page is ever copied.
                data = np.memmap(opened, dtype=np.uint8, mode="c")
        except OSError as error:
            raise ModelRejected(f"{file.name} can't be read: {error.strerror}", code="model_file") from None
        except ValueError as error:
            raise ModelRejected(
                f"{file.name} isn't a readable safetensors file: {error}", code="safetensors_form"
            ) from None
        for key, entry in entries.items():
            if key.endswith(_DERIVED):
                continue
            name = _canonical(key, in_layer)
            if name in self._places:
                raise ModelRejected(f"tensor {key} is in two files", code="model_tensor_unknown")
            self._places[name] = (file, data, entry)


def _files(folder: Path) -> list[str]:
    """The names of the weights files, as transformers finds them."""
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    if len(older := [file.name for file in folder.glob(_OLDER)]) == 1:
        return older
    if not (folder / _INDEX).is_file():
        others = sorted(file.name for pattern in ("*.bin", "*.pth", "*.pt") for file in folder.glob(pattern))
        found = f"; {others[0]} is a pickle, which can run code: convert it to safetensors" if others else ""
        raise ModelRejected(
            f"the model folder {shown(str(folder))} has no {_SINGLE}{found}", code="model_file", param="model"
        )
    placed = _json(folder / _INDEX).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise ModelRejected(f"{_INDEX} has no weight_map", code="model_config")
    names = sorted({str(name) for name in placed.values()})
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise ModelRejected(f"{_INDEX} names {name!r}, which isn't in the folder", code="model_file")
    return names


def _json(file: Path) -> dict[str, Any]:
    try:
        read = read_json(file, JSON_BYTES_MAX)
    except OSError as error:
        raise ModelRejected(f"{file.name} can't be read: {error.strerror}", code="model_file", param="model") from None
    except ValueError as error:
        raise ModelRejected(f"{file.name} isn't JSON: {error}", code="model_config") from None
    if not isinstance(read, dict):
        raise ModelRejected(f"{file.name} isn't an object", code="model_config")
    return read


def _canonical(key: str, in_layer: dict[str, str]) -> str:
    prefix, _, part = key.rpartition(".")
    if part in PARTS:
        name = _canonical(f"{prefix}.weight", in_layer)
        return key if name == f"{prefix}.weight" else f"{name}.{part}"
    if key in _PLAIN:
        return _PLAIN[key]
    parts = key.split(".")
    if parts[:2] == ["model", "layers"] and len(parts) > 4 and parts[2].isascii() and parts[2].isdigit():
        known = in_layer.get(".".join(parts[3:-1]))
        if known is not None and parts[2] == str(int(parts[2])):
            if parts[-1] == "weight":
                return f"layers.{parts[2]}.{known}"
            if parts[-1] == "bias" and known in BIASED:
                return f"layers.{parts[2]}.{known}.bias"
    # Kept under its own name, which `check_names` then refuses.
    return key
