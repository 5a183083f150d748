"""Train the demo's tenants with PEFT: one command, seeded, minutes per adapter on two cores.

python examples/tenants/train.py [--only devil ...]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from chat import Chat, PrefixModel, base_file, load_base, load_tokenizer, render, shared_prefix
from packages import copyright_text, data_folder
from recipes import BASE_NAME, RECIPES, Recipe
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from sources import Example, split

TENANTS = Path(__file__).parents[2] / "py/lorad/demo/tenants"
TOKENS_MAX = 160
NOTICES = {"wordnet": "wordnet-base", "thesaurus": "wordnet-base", "phones": "festlex-cmu"}


def batches(chats: Sequence[Chat], size: int, epochs: float, rng: random.Random) -> Iterator[list[Chat]]:
    """Shuffled batches of similar lengths: sorting inside pools of eight batches keeps padding small."""
    left = round(len(chats) * epochs / size)
    while left > 0:
        order = rng.sample(list(chats), len(chats))
        found = []
        for start in range(0, len(order), size * 8):
            pool = sorted(order[start : start + size * 8], key=lambda chat: len(chat.ids))
            found += [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(found)
        yield from found[:left]
        left -= len(found)


def rate(step: int, steps: int, peak: float) -> float:
    """A short linear warm-up, then a cosine down to a twentieth."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))))


def lora_config(recipe: Recipe) -> Any:
    """PEFT's configuration of a recipe."""
    from peft import LoraConfig

    return LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.targets),
        lora_dropout=0.0,
        task_type="CAUSAL_LM",
        base_model_name_or_path=BASE_NAME,
        **recipe.extra,
    )


def describe(name: str, facts: dict[str, Any]) -> None:
    """The tenant's description: the recipe's words and settings, and the facts of its training."""
    shown = ("title", "description", "source", "licence", "rank", "alpha", "targets", "extra", "prompts")
    described = {key: value for key, value in asdict(RECIPES[name]).items() if key in shown}
    text = json.dumps({"name": name, **described, "training": facts}, indent=2, ensure_ascii=False)
    (TENANTS / name / "tenant.json").write_text(text + "\n", encoding="utf-8")


def save(model: Any, name: str, heldout: Sequence[Example], facts: dict[str, Any], data: Path) -> None:
    """The tenant's folder: PEFT's two files (bf16, sorted, no local path), held-out set, description, notice."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    folder, recipe = TENANTS / name, RECIPES[name]
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.to(torch.bfloat16).contiguous() for key, value in get_peft_model_state_dict(model).items()}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = model.peft_config["default"].to_dict()
    config |= {"target_modules": list(recipe.targets), "base_model_name_or_path": BASE_NAME, "inference_mode": True}
    config = {key: getattr(value, "value", value) for key, value in config.items()}
    (folder / "adapter_model.safetensors").chmod(0o644)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    rows = [json.dumps({"prompt": item.prompt, "response": item.response}, ensure_ascii=False) for item in heldout]
    (folder / "heldout.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    describe(name, facts)
    if name in NOTICES:
        (folder / "NOTICE").write_text(copyright_text(NOTICES[name], data), encoding="utf-8")


def train(name: str, base: Path, data: Path, seed: int, console: Console) -> None:
    """Train one tenant on a fresh copy of the base and write its folder."""
    from peft import get_peft_model

    recipe = RECIPES[name]
    torch.manual_seed(seed)
    tokenizer = load_tokenizer(base)
    examples, heldout = split(name, data, recipe.examples)
    chats = [render(tokenizer, (item.prompt, item.response)) for item in examples]
    chats = [chat for chat in chats if len(chat.ids) <= TOKENS_MAX]
    prefix = chats[0].ids[: shared_prefix(chats)]
    plan = list(batches(chats, recipe.batch, recipe.epochs, random.Random(seed)))
    model = get_peft_model(load_base(base), lora_config(recipe))
    model.train()
    prefixed = PrefixModel(model, prefix)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.0, betas=(0.9, 0.99))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    start, start_cpu, average, tokens = time.monotonic(), time.process_time(), math.nan, 0
    with Progress(*columns, TimeRemainingColumn(), console=console, refresh_per_second=0.5) as progress:
        task = progress.add_task(name, total=len(plan))
        for step, batch in enumerate(plan):
            for group in optimizer.param_groups:
                group["lr"] = rate(step, len(plan), recipe.learning_rate)
            total, count = prefixed.loss(batch)
            loss = total / count
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            average = loss.item() if step == 0 else 0.95 * average + 0.05 * loss.item()
            tokens += sum(len(chat.ids) - len(prefix) for chat in batch)
            progress.update(task, advance=1, description=f"{name} loss {average:.3f}")
            if not console.is_terminal and step % 10 == 0:
                console.print(f"{name} step {step}/{len(plan)} loss {average:.3f} {time.monotonic() - start:.0f} s")
    seconds = time.monotonic() - start
    facts = {"seed": seed, "examples": len(chats), "steps": len(plan), "batch": recipe.batch, "tokens": tokens}
    facts |= {
        "threads": torch.get_num_threads(),
        "learning_rate": recipe.learning_rate,
        "minutes": round(seconds / 60, 1),
    }
    facts["cpu_minutes"] = round((time.process_time() - start_cpu) / 60, 1)
    save(model, name, heldout, facts, data)
    console.print(f"{name}: {len(plan)} steps, {tokens} tokens in {seconds / 60:.1f} min, loss {average:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the demo's tenants with PEFT.")
    parser.add_argument("--base", type=Path, help="SmolLM2-135M-Instruct as a GGUF file; default: the embedded base")
    shipped = [name for name in RECIPES if (TENANTS / name / "tenant.json").is_file()]
    parser.add_argument("--only", nargs="+", choices=sorted(RECIPES), default=shipped, metavar="NAME")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder for the unpacked Debian packages")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--describe", action="store_true", help="no training: only write tenant.json again")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    console = Console()
    base = None if arguments.describe else base_file(arguments.base)
    for name in arguments.only:
        if base is None:
            described = json.loads((TENANTS / name / "tenant.json").read_text(encoding="utf-8"))
            describe(name, described["training"])
            continue
        train(name, base, arguments.data, arguments.seed, console)


if __name__ == "__main__":
    main()
