"""What PEFT does to the base at the beginning of a training, and that what a refusal tells somebody to do works."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lorad import Engine
from lorad.adapters.features import STARTS
from lorad.adapters.load import load_adapter
from lorad.adapters.peft_config import PLAIN_STARTS
from lorad.errors import AdapterRejected
from lorad.models.open import open_model
from make_adapter import edit_config
from oracle import load_reference
from tiny import make_tiny

PROMPT = [72, 101, 108, 108, 111]
TOKENS = 12


def begun(base: Path, start: Any, rank: int = 4) -> Any:
    """A PEFT model that begins its training like that."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    config = LoraConfig(
        r=rank,
        lora_alpha=6,
        init_lora_weights=start,
        target_modules=["q_proj", "down_proj"],
        task_type="CAUSAL_LM",
        **({"loftq_config": {"loftq_bits": 4, "loftq_iter": 1}} if start == "loftq" else {}),
    )
    return get_peft_model(load_reference(base), config)


def train(model: Any) -> None:
    """Stands for a training: the adapter's weights move."""
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if ".lora_" in name:
            weight.data += 0.2 * torch.randn(weight.shape, generator=generator)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("base") / "model")


def base_changes(base: Path, start: Any) -> bool:
    before = load_reference(base).state_dict()
    after = {
        key.replace(".base_layer.", "."): value
        for key, value in begun(base, start).base_model.model.state_dict().items()
        if ".lora_" not in key
    }
    assert before.keys() == after.keys()
    return any(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("start", [True, False, *(start for start in PLAIN_STARTS if start != "eva")])
def test_plain_starts_leave_the_base_as_it_is(start: Any, base: Path) -> None:
    assert not base_changes(base, start)


@pytest.mark.parametrize("start", ["pissa", "pissa_niter_4", "olora"])
def test_other_starts_change_the_base(start: str, base: Path) -> None:
    assert base_changes(base, start)


def agrees(model: Any, base: Path, adapter: Path) -> None:
    """lorad's greedy tokens and log-probabilities on these files are the trained model's own."""
    engine = Engine(str(base), dtype="float32", kv_cache_memory_bytes=1 << 20, max_num_seqs=1)
    engine.load_adapter("a", str(adapter))
    request = engine.add(PROMPT, "a", max_tokens=TOKENS, stop_token_ids=(), logprobs=0)
    while engine.step():
        pass
    engine.close()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*PROMPT, *request.tokens[:-1]]])).logits[0, len(PROMPT) - 1 :]
    wanted = torch.log_softmax(logits.float(), dim=-1)
    assert request.tokens == wanted.argmax(dim=-1).tolist()
    chosen = wanted[torch.arange(TOKENS), request.tokens]
    assert float((chosen - torch.tensor(request.logprobs)).abs().max()) < 1e-3


def converted(model: Any, folder: Path) -> Path:
    """As the refusal says: the adapter saved before the training, then the difference."""
    model.save_pretrained(folder / "before")
    train(model)
    model.save_pretrained(folder / "after", path_initial_model_for_weight_conversion=str(folder / "before"))
    return folder / "after"


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_conversion_makes_a_plain_adapter(start: str, base: Path, tmp_path: Path) -> None:
    model = begun(base, start)
    agrees(model.eval(), base, converted(model, tmp_path))


def changed_base(model: Any, base: Path, folder: Path) -> tuple[Path, Path]:
    """The trained adapter, and the base that it was trained against, each saved."""
    train(model)
    model.save_pretrained(folder / "adapter")
    with pytest.raises(AdapterRejected) as refused:
        load_adapter("a", folder / "adapter", open_model(base).config, "digest")
    start = model.peft_config["default"].init_lora_weights
    assert STARTS[start].refusal in refused.value.message
    edit_config(folder / "adapter", init_lora_weights=True)
    whole = {
        key.replace(".base_layer.", "."): value
        for key, value in model.base_model.model.state_dict().items()
        if ".lora_" not in key
    }
    plain = load_reference(base)
    plain.load_state_dict(whole)
    plain.save_pretrained(folder / "base")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "base" / file).write_bytes((base / file).read_bytes())
    return folder / "adapter", folder / "base"


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_the_changed_base_can_be_served(start: str, base: Path, tmp_path: Path) -> None:
    model = begun(base, start).eval()
    adapter, changed = changed_base(model, base, tmp_path)
    agrees(model, changed, adapter)
