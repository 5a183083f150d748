"""The reference: transformers and PEFT in fp32 on the same files, one request at a time, no padding.

Only file paths are shared with lorad: GGUF is read through transformers' own loader, adapters through PEFT's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

ADAPTERS_MAX = 12
"""Adapters that an oracle keeps in memory."""


class Answer(NamedTuple):
    """A greedy continuation."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural logarithm of each token's probability."""
    gaps: tuple[float, ...]
    """Between the best and the second best log-probability: where it is tiny, another token would be right too."""


class Oracle:
    """One base model and whatever adapters it is asked about. Answers are remembered."""

    def __init__(self, model: Any) -> None:
        self._base = model
        self._model: Any = model
        self._names: dict[Path, str] = {}
        self._count = 0
        self._answers: dict[tuple[Path | None, tuple[int, ...], int], Answer] = {}

    def greedy(self, prompt: Sequence[int], tokens: int = 64, adapter: Path | None = None) -> Answer:
        """`tokens` greedy tokens after `prompt`, whatever they are, under the adapter in a folder or the base."""
        key = (adapter and adapter.resolve(), tuple(prompt), tokens)
        if key not in self._answers:
            self._answers[key] = self._generate(list(prompt), tokens, adapter)
        return self._answers[key]

    def greedy_all(self, requests: Iterable[tuple[Sequence[int], Path | None]], tokens: int = 64) -> list[Answer]:
        """`greedy` for each (prompt, adapter)."""
        return [self.greedy(prompt, tokens, adapter) for prompt, adapter in requests]

    @torch.no_grad()
    def logprobs(self, ids: Sequence[int], adapter: Path | None = None) -> torch.Tensor:
        """Log-probabilities of every next token, f32 [len(ids), vocab]."""
        with self._using(adapter):
            logits = self._model(input_ids=torch.tensor([list(ids)])).logits[0]
        return torch.log_softmax(logits.float(), dim=-1)

    @torch.no_grad()
    def scores(
        self, prompt: Sequence[int], endings: Iterable[Sequence[int]], adapter: Path | None = None
    ) -> list[float]:
        """The log-probability of each ending, all of its tokens together. The prompt is computed once."""
        found = []
        with self._using(adapter):
            begun = self._model(input_ids=torch.tensor([list(prompt)]), use_cache=True)
            first, cache = begun.logits[0, -1:], begun.past_key_values
            for ending in map(list, endings):
                logits = self._model(input_ids=torch.tensor([ending]), past_key_values=cache).logits[0]
                cache.crop(-len(ending))
                logprobs = torch.log_softmax(torch.cat([first, logits[:-1]]).float(), dim=-1)
                found.append(float(logprobs.gather(1, torch.tensor([ending]).T).sum()))
        return found

    @torch.no_grad()
    def _generate(self, prompt: list[int], tokens: int, adapter: Path | None) -> Answer:
        found: list[tuple[int, float, float]] = []
        cache = None
        ids = torch.tensor([prompt])
        with self._using(adapter):
            for _ in range(tokens):
                out = self._model(input_ids=ids, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                best = torch.log_softmax(out.logits[0, -1].float(), dim=-1).topk(2)
                token = int(best.indices[0])
                found.append((token, float(best.values[0]), float(best.values[0] - best.values[1])))
                ids = torch.tensor([[token]])
        made, logprobs, gaps = zip(*found, strict=True)
        return Answer(made, logprobs, gaps)

    def _using(self, adapter: Path | None) -> Any:
        if adapter is None:
            return _Nothing() if self._model is self._base else self._model.disable_adapter()
        self._model = self.load(adapter)
        self._model.set_adapter(self._names[adapter.resolve()])
        return _Nothing()

    def load(self, adapter: Path) -> Any:
        """The PEFT model with this adapter in it. PEFT must have used the whole file."""
        from peft import PeftModel

        path = adapter.resolve()
        if path in self._names:
            return self._model
        name = f"oracle{self._count}"
        self._count += 1
        if self._model is self._base:
            self._model = PeftModel.from_pretrained(self._base, path, adapter_name=name).eval()
        else:
            result = self._model.load_adapter(path, adapter_name=name)
            assert not result.unexpected_keys, result.unexpected_keys
            self._model.eval()
        self._names[path] = name
        self._model.set_adapter(name)
        if len(self._names) > ADAPTERS_MAX:
            oldest = next(iter(self._names))
            self._model.delete_adapter(self._names.pop(oldest))
        return self._model

    @property
    def config(self) -> Any:
        """transformers' config of the base."""
        return self._base.config

    def state(self) -> dict[str, torch.Tensor]:
        """The base's weights by transformers' names, whatever PEFT has put around them."""
        found = self._base.state_dict()
        return {key.replace(".base_layer.", "."): value for key, value in found.items() if ".lora_" not in key}

    def deltas(self, adapter: Path) -> dict[str, torch.Tensor]:
        """scale · B · A of each adapted module, f32 [out, in], by its name in the base's module tree."""
        model = self.load(adapter)
        name = self._names[adapter.resolve()]
        return {
            path: module.get_delta_weight(name).detach()
            for path, module in model.base_model.model.named_modules()
            if name in getattr(module, "lora_A", {})
        }


class _Nothing:
    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        return


def load_reference(path: Path) -> Any:
    """transformers' model in fp32, from a GGUF file or a folder."""
    from transformers import AutoModelForCausalLM

    if path.is_dir():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


_oracles: dict[Path, Oracle] = {}


def oracle(path: Path) -> Oracle:
    """The oracle of a base, loaded once in a session."""
    path = path.resolve()
    if path not in _oracles:
        _oracles[path] = Oracle(load_reference(path))
    return _oracles[path]
