"""`Targets`: which modules adapter_config.json says are adapted, held against the tensors that are there.

The tensors decide what is in force. Where the config contradicts them:
- tensors of a module that the config leaves out: refused, since PEFT would drop them without a word;
- a module that the config names, without tensors: a warning, since PEFT would begin it anew, with no effect.

PEFT's rules: `peft.tuners.tuners_utils.check_target_module_exists`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lorad.adapters.keys import module_path, path_in_model
from lorad.adapters.regular import NotRegular, Regular
from lorad.adapters.reject import reject
from lorad.models.config import ModelConfig

ALL_LINEAR = "all-linear"
_SHOWN = 3
_OTHERS = ("model.embed_tokens", "lm_head")
"""Modules that can be adapted and aren't a layer's projections."""
_ANY_PATTERN = re.compile(r".*?\.[^.]*\.(?P<layer>\d+)\.")
_PLAIN_PATTERN = re.compile(r"[A-Za-z0-9_]+(?:\\?\.[A-Za-z0-9_]+)*")
_NAME = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")


class Targets:
    """The four fields that say it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Refuses fields of the wrong type, and combinations that PEFT refuses."""
        self.targets = _names(config, "target_modules")
        self.excluded = _names(config, "exclude_modules")
        self.layers = _layers(config.get("layers_to_transform"))
        self.patterns = _patterns(config)
        self.warnings: list[str] = []
        if isinstance(self.targets, str) and (self.layers is not None or self.patterns):
            raise reject(
                "adapter_config",
                "layers_to_transform and layers_pattern go with a list of target_modules only, as in PEFT; it is "
                f"{_short(self.targets)}",
            )
        if self.patterns and self.layers is None:
            raise reject("adapter_config", "layers_pattern wants layers_to_transform beside it, as in PEFT")
        self._expressions = {
            field: self._expression(field, value)
            for field, value in (("target_modules", self.targets), ("exclude_modules", self.excluded))
        }
        self._sets = {
            field: frozenset(value) if isinstance(value, list) else frozenset()
            for field, value in (("target_modules", self.targets), ("exclude_modules", self.excluded))
        }

    @property
    def known(self) -> bool:
        """Whether the config says what is adapted, in a way that can be followed."""
        return self.targets is not None and not self.warnings

    def why_not(self, path: str) -> str | None:
        """Why PEFT wouldn't adapt the module at `path`; None if it would. NotRegular if that takes too long."""
        return self.why_excluded(path) or self.why_not_named(path)

    def why_excluded(self, path: str) -> str | None:
        """Because it's said to be left out."""
        if self.excluded and self._named("exclude_modules", path):
            return f"exclude_modules = {_short(self.excluded)} leaves it out"
        return None

    def why_not_named(self, path: str) -> str | None:
        """Because it isn't among those that are said to be adapted."""
        if isinstance(self.targets, str):
            if self.targets.lower() == ALL_LINEAR:
                return None if path.rpartition(".")[2].endswith("_proj") else f"{ALL_LINEAR} leaves it out"
            # One plain name is meant as in a list, although PEFT wants the whole path.
            plain = _NAME.fullmatch(self.targets) and f".{path}".endswith(f".{self.targets}")
            if plain or self._named("target_modules", path):
                return None
        elif path in self._sets["target_modules"]:
            return None
        elif self._named("target_modules", path):
            if self.layers is None or self._layer(path) in self.layers:
                return None
            return f"layers_to_transform = {_short(sorted(self.layers))} leaves it out"
        return f"target_modules = {_short(self.targets)} doesn't name it"

    def _named(self, field: str, path: str) -> bool:
        expression = self._expressions[field]
        if expression is not None:
            return expression.fullmatch(path)
        return any(end in self._sets[field] for end in _ends(path))

    def _expression(self, field: str, value: str | list[str] | None) -> Regular | None:
        if not isinstance(value, str) or value.lower() == ALL_LINEAR:
            return None
        try:
            return Regular(value)
        except NotRegular:
            self.give_up(field)
        except ValueError as error:
            raise reject("adapter_config", f"{field}: {_short(value)} isn't a regular expression: {error}") from None
        return None

    def give_up(self, field: str) -> None:
        """Notes that the field isn't held against the tensors."""
        self.warnings.append(f"{field} is too involved to be compared with the tensors, which decide what is adapted")

    def _layer(self, path: str) -> int | None:
        if not self.patterns:
            match = _ANY_PATTERN.match(path)
        else:
            ways = (re.match(rf"(?:^|.*?\.){pattern}\.(?P<layer>\d+)\.", path) for pattern in self.patterns)
            match = next((way for way in ways if way is not None), None)
        return int(match["layer"]) if match else None


def check_targets(config: Mapping[str, Any], keys: Iterable[str], base: ModelConfig) -> tuple[str, ...]:
    """Refuses tensors that the config leaves out. What it names without tensors comes back as warnings.

    `keys` are the A tensors that are in force, one of each module.
    """
    targets = Targets(config)
    if not targets.known:
        return tuple(targets.warnings)
    try:
        found: set[str] = set()
        prefix = "model."
        # PEFT adapts the embedding and the head alike, whichever is named.
        is_tied = base.tie_embeddings and config.get("ensure_weight_tying") is True
        tied = is_tied and any(targets.why_not(path) is None for path in _OTHERS)
        for key in keys:
            spelt, usual = path_in_model(key)
            reason = None if tied and usual in _OTHERS else targets.why_not(spelt)
            # Where trainers spell keys in their own way, expressions are for the usual names.
            if reason is not None and (targets.why_excluded(spelt) or targets.why_not(usual)):
                raise reject(
                    "adapter_target",
                    f"tensor {key} is for a module that adapter_config.json doesn't adapt: {reason}. PEFT would drop "
                    "it; correct the config, or remove the tensors",
                )
            found |= {spelt, usual}
            if "layers." in spelt:
                prefix = spelt.partition("layers.")[0]
        # As the file spells the modules that it has.
        paths = [
            prefix + module_path(layer, module.name).removeprefix("model.")
            for layer in range(base.layers)
            for module in base.modules()
        ]
        others = [path for path in _OTHERS if isinstance(targets.targets, list)]
        lacking = [path for path in (*paths, *others) if path not in found and targets.why_not(path) is None]
    except NotRegular:
        targets.give_up("target_modules or exclude_modules")
        return tuple(targets.warnings)
    warnings = []
    if lacking:
        warnings.append(
            f"adapter_config.json adapts {_count(lacking)} that the file has no tensors of ({_listed(lacking)}): "
            "nothing is added there, as in PEFT, which would begin them anew"
        )
    if isinstance(targets.targets, list):
        ends = {end for path in (*paths, *others) for end in _ends(path)}
        unknown = [name for name in targets.targets if name not in ends]
        if unknown:
            warnings.append(f"target_modules has names that nothing in the base has: {_listed(unknown)}")
    return tuple(warnings)


def _ends(path: str) -> list[str]:
    """The path and what follows each of its dots."""
    parts = path.split(".")
    return [".".join(parts[begin:]) for begin in range(len(parts))]


def _names(config: Mapping[str, Any], field: str) -> str | list[str] | None:
    value = config.get(field)
    if value is None or value is False or value == "":
        return None
    if not (isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))):
        raise reject("adapter_config", f"{field} wants a list of names or a text, is {_short(value)}")
    return value


def _patterns(config: Mapping[str, Any]) -> list[str]:
    """Names of the lists of layers. PEFT takes expressions; nobody needs more than names."""
    value = _names(config, "layers_pattern") or []
    patterns = [value] if isinstance(value, str) else value
    if not all(_PLAIN_PATTERN.fullmatch(pattern) for pattern in patterns):
        raise reject("adapter_config", f"layers_pattern wants plain names such as layers, is {_short(value)}")
    return patterns


def _layers(value: Any) -> frozenset[int] | None:
    """None: all. An empty list is all too, as in PEFT."""
    if value is None or value == []:
        return None
    values: Sequence[Any] = value if isinstance(value, list) else [value]
    if not all(type(item) is int for item in values):
        raise reject("adapter_config", f"layers_to_transform wants numbers of layers, is {_short(value)}")
    return frozenset(values)


def _count(paths: Sequence[str]) -> str:
    return "a module" if len(paths) == 1 else f"{len(paths)} modules"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
