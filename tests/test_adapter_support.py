"""The support table, row by row: what is applied agrees with PEFT, what is refused says so; and random mixes of both.

More mixes by `LORAD_MIXES=200 make test-python ARGS=tests/test_adapter_support.py`.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorad import Engine
from lorad.adapters.document import renewed
from lorad.adapters.features import BY_NAME, ROWS
from lorad.adapters.load import load_adapter
from lorad.errors import AdapterRejected
from lorad.models.config import MODULES, ModelConfig
from make_adapter import edit_config, edit_tensors, make_adapter
from oracle import Oracle, load_reference, oracle
from other_formats import UNSLOTH, to_gguf, to_mlx, to_shards
from test_adapters import SPELLINGS
from tiny import make_tiny
from trained_adapter import train

MIXES = int(os.environ.get("LORAD_MIXES", "6"))
TOKENS = 12
TOLERANCE = 1e-3
DOCUMENT = Path(__file__).parents[1] / "docs/adapters.md"
FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
Q = f"{PREFIX}model.layers.0.self_attn.q_proj"


class Base(NamedTuple):
    """A tiny base, engine and reference."""

    engine: Engine
    reference: Oracle

    @property
    def config(self) -> ModelConfig:
        return self.engine.weights.config


class Made(NamedTuple):
    """The same adapter twice."""

    path: Path
    """As lorad is to load it."""
    like: Path
    """As PEFT can read it."""
    base: Path | None = None
    """A copy of the base for PEFT, of an adapter that would change the one that all share."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Base]:
    path = make_tiny(tmp_path_factory.mktemp("base") / "model")
    engine = Engine(str(path), dtype="float32", kv_cache_memory_bytes=8 << 20, max_num_seqs=4)
    yield Base(engine, oracle(path))
    engine.close()


def check_agrees(base: Base, made: Made, seed: int = 0) -> None:
    """The reference's greedy tokens and log-probabilities, which aren't the base's."""
    dice = random.Random(seed)
    prompt = [dice.randrange(3, 250) for _ in range(dice.randint(2, 40))]
    base.engine.load_adapter("mine", str(made.path))
    request = base.engine.add(prompt, "mine", max_tokens=TOKENS, stop_token_ids=(), logprobs=0)
    while base.engine.step():
        pass
    read = [*prompt, *request.tokens[:-1]]
    reference = base.reference if made.base is None else Oracle(load_reference(made.base))
    wanted = reference.logprobs(read, made.like)[len(prompt) - 1 :]
    assert request.tokens == wanted.argmax(dim=-1).tolist()
    chosen = wanted[torch.arange(TOKENS), request.tokens]
    assert float((chosen - torch.tensor(request.logprobs)).abs().max()) < TOLERANCE
    plain = base.reference.logprobs(read)[len(prompt) - 1 :]
    assert float((plain - wanted).abs().max()) > TOLERANCE


def plain(path: Path, config: ModelConfig, **options: Any) -> Made:
    made = make_adapter(path, config, **options)
    return Made(made, made)


def trained(path: Path, config: ModelConfig, **lora_config: Any) -> Made:
    """As PEFT saves a model whose numbers were moved."""
    base = make_tiny(path / "base")
    made = train(base, path / "trained", **lora_config)
    return Made(made, made, base)


def edited(path: Path, config: ModelConfig, **fields: Any) -> Made:
    """A config that PEFT reads differently or not at all beside the one that it wrote."""
    return Made(edit_config(make_adapter(path / "edited", config), **fields), make_adapter(path / "plain", config))


def parts(path: Path, config: ModelConfig) -> Made:
    return Made(to_shards(make_adapter(path / "parts", config), 3), make_adapter(path / "plain", config))


def as_gguf(path: Path, config: ModelConfig, kind: str = "F32", **options: Any) -> Made:
    folder = make_adapter(path / "plain", config, **options)
    return Made(to_gguf(folder, path / "a.gguf", config, kind), folder)


def quantised(path: Path, config: ModelConfig) -> Made:
    """PEFT gets the values that Q8_0 rounds to, which llama.cpp's own dequantisation gives."""
    import gguf

    made = as_gguf(path, config, "Q8_0", rank=32, modules=["v_proj", "up_proj"])
    names = {"v_proj": "attn_v", "up_proj": "ffn_up"}
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(made.path).tensors}

    def rounded(tensors: dict[str, torch.Tensor]) -> None:
        for key in tensors:
            layer, _, name, half = key.removeprefix(f"{PREFIX}model.layers.").split(".")[:4]
            found = stored[f"blk.{layer}.{names[name]}.weight.{half.lower()}"]
            tensors[key] = torch.from_numpy(gguf.dequantize(found.data, found.tensor_type).copy())

    return Made(made.path, edit_tensors(made.like, rounded))


def as_mlx(path: Path, config: ModelConfig, **options: Any) -> Made:
    folder = make_adapter(path / "plain", config, **options)
    return Made(to_mlx(folder, path / "mlx", config), folder)


def spelt(path: Path, config: ModelConfig, name: str = "5.7 twice") -> Made:
    change = SPELLINGS[name][1]
    made = make_adapter(path / "spelt", config)
    edit_tensors(made, lambda old: {change(key): value for key, value in old.items()})
    return Made(made, make_adapter(path / "plain", config))


def without_tensors(path: Path, config: ModelConfig) -> Made:
    """PEFT begins the modules that have none anew, with no effect."""
    made = plain(path, config)
    edit_tensors(made.path, lambda old: {k: v for k, v in old.items() if "k_proj" not in k and "layers.1.mlp" not in k})
    return made


def eight_bits(path: Path, config: ModelConfig) -> Made:
    """PEFT gets the rounded values as f32."""
    made = Made(make_adapter(path / "eight", config), make_adapter(path / "plain", config))
    for folder, types in ((made.path, []), (made.like, [torch.float32])):
        for dtype in (torch.float8_e5m2, *types):
            edit_tensors(folder, lambda old, dtype=dtype: {k: v.to(dtype) for k, v in old.items()})  # type: ignore[misc]
    return made


APPLIED: dict[str, list[Callable[[Path, ModelConfig], Made]]] = {
    "PEFT safetensors": [plain],
    "PEFT safetensors in parts": [parts],
    "llama.cpp GGUF": [as_gguf, lambda path, config: as_gguf(path, config, rank=5, rank_pattern={"q_proj": 3})],
    "MLX": [as_mlx, lambda path, config: as_mlx(path, config, rank=7, alpha=3)],
    "rank and alpha": [lambda path, config: plain(path, config, rank=37, alpha=12.5)],
    "rank-stabilised scale": [lambda path, config: plain(path, config, rank=16, rslora=True)],
    "ranks and alphas by module": [
        lambda path, config: plain(
            path, config, rank_pattern={r"layers\.1\..*": 5, "q_proj": 2}, alpha_pattern={"mlp.up_proj": 3}
        )
    ],
    "any modules, any layers": [
        lambda path, config: plain(path, config, modules=["k_proj", "down_proj"], layers=[0, 2]),
        lambda path, config: plain(path, config, modules="all-linear", exclude_modules=["o_proj"]),
        lambda path, config: plain(path, config, modules=r".*layers\.[12]\.self_attn\.(q|v)_proj"),
        lambda path, config: plain(path, config, modules=["v_proj"], layers=[1], layers_pattern="layers"),
        lambda path, config: edited(path, config, target_modules=UNSLOTH),
        without_tensors,
        lambda path, config: edited(path, config, target_modules=[*MODULES, "c_attn", "lm_head"]),
    ],
    "other spellings of keys": [
        lambda path, config, name=name: spelt(path, config, name)  # type: ignore[misc]
        for name in SPELLINGS
    ],
    "transposed weights": [lambda path, config: plain(path, config, fan_in_fan_out=True)],
    "plain beginnings": [
        lambda path, config: plain(path, config, init_lora_weights="gaussian"),
        lambda path, config: edited(path, config, init_lora_weights=False),
        lambda path, config: plain(path, config, init_lora_weights="orthogonal"),
        lambda path, config: edited(path, config, init_lora_weights="eva"),
        lambda path, config: edited(path, config, init_lora_weights="mica"),
    ],
    "DoRA": [
        lambda path, config: trained(path, config, use_dora=True),
        lambda path, config: trained(path, config, use_dora=True, r=5, target_modules=["k_proj", "embed_tokens"]),
    ],
    "a bias of LoRA": [lambda path, config: trained(path, config, lora_bias=True)],
    "trained biases": [lambda path, config: trained(path, config, bias="all")],
    "modules trained in full": [
        lambda path, config: trained(path, config, modules_to_save=["embed_tokens"]),
        lambda path, config: trained(path, config, modules_to_save=["lm_head"]),
    ],
    "trainable tokens": [lambda path, config: trained(path, config, trainable_token_indices=[70, 5, 101])],
    "LoRA on the embedding": [lambda path, config: trained(path, config, target_modules=["embed_tokens"])],
    "LoRA on the output": [lambda path, config: trained(path, config, target_modules=["lm_head", "v_proj"])],
    "copies of the base's weights": [
        lambda path, config: trained(path, config, target_modules=["embed_tokens", "q_proj"]),
    ],
    "numbers of 16 and 32 bits": [
        lambda path, config: plain(path, config, dtype=torch.bfloat16),
        lambda path, config: plain(path, config, dtype=torch.float16),
    ],
    "floats of 8 bits": [eight_bits],
    "quantised GGUF tensors": [quantised],
}

Change = Callable[[Path, ModelConfig], Any]


def fields(**changes: Any) -> Change:
    return lambda path, config: edit_config(path, **changes)


def tensor(key: str, *shape: int) -> Change:
    return lambda path, config: edit_tensors(path, lambda old: old | {key: torch.ones(shape)})


def mlx(**changes: Any) -> Change:
    """The adapter becomes MLX's, in its own folder."""

    def change(path: Path, config: ModelConfig) -> None:
        to_mlx(path, path, config, **changes)
        (path / FILE).unlink()

    return change


def mlx_embedding(path: Path, config: ModelConfig) -> None:
    mlx()(path, config)
    file = path / "adapters.safetensors"
    save_file(load_file(file) | {"model.embed_tokens.lora_a": torch.ones(config.vocab, 4)}, file)


def other_architecture(path: Path, config: ModelConfig) -> None:
    to_gguf(path, path / "a.gguf", config.replace(architecture="qwen3"))
    (path / FILE).unlink()


def gguf_embedding(path: Path, config: ModelConfig) -> None:
    edit_config(path, alpha_pattern={}, use_rslora=False)
    to_gguf(path, path / "a.gguf", config, change=lambda old: old | {"token_embd.weight.lora_a": torch.ones(320, 4)})
    (path / FILE).unlink()


REFUSED: dict[str, tuple[Change, str]] = {
    "parts that don't belong together": (
        lambda path, config: (to_shards(path) / "adapter_model-00002-of-00002.safetensors").unlink(),
        "the part adapter_model-00002-of-00002.safetensors is missing",
    ),
    "GGUF for another architecture": (other_architecture, "general.architecture is 'qwen3', the base's is 'llama'"),
    "pickle": (lambda path, config: (path / FILE).rename(path / "adapter_model.bin"), "adapter_model.bin"),
    "Kohya's spelling": (
        lambda path, config: edit_tensors(
            path, lambda old: {k.replace("lora_A", "lora_down"): v for k, v in old.items()}
        ),
        "lora_down",
    ),
    "tensors that the config leaves out": (fields(exclude_modules=["k_proj"]), "exclude_modules = ['k_proj']"),
    "PiSSA": (fields(init_lora_weights="pissa_niter_4"), "init_lora_weights = 'pissa_niter_4'"),
    "OLoRA": (fields(init_lora_weights="olora"), "init_lora_weights = 'olora'"),
    "CorDA": (fields(init_lora_weights="corda"), "init_lora_weights = 'corda'"),
    "LoRA-GA": (fields(init_lora_weights="lora_ga"), "init_lora_weights = 'lora_ga'"),
    "LoftQ": (fields(init_lora_weights="loftq"), "init_lora_weights = 'loftq'"),
    "beginnings that aren't known": (fields(init_lora_weights="magic"), "init_lora_weights = 'magic'"),
    "other modules trained in full": (fields(modules_to_save=["norm"]), "modules_to_save = 'norm'"),
    "DoRA with a bias of LoRA": (fields(use_dora=True, lora_bias=True), "use_dora with lora_bias"),
    "other biases": (fields(bias="some"), "bias = 'some'"),
    "LoRA on parameters": (fields(target_parameters=["experts.gate"]), "target_parameters = ['experts.gate']"),
    "replicated layers": (fields(layer_replication=[[0, 2], [1, 3]]), "layer_replication = [[0, 2], [1, 3]]"),
    "activated LoRA (aLoRA)": (fields(alora_invocation_tokens=[1, 2]), "alora_invocation_tokens = [1, 2]"),
    "QALoRA": (fields(use_qalora=True), "use_qalora = True"),
    "BD-LoRA": (fields(use_bdlora={"nblocks": 2}), "use_bdlora = {'nblocks': 2}"),
    "Megatron's layers": (fields(megatron_config={"a": 1}), "megatron_config = {'a': 1}"),
    "Arrow routing": (fields(arrow_config={"top_k": 2}), "arrow_config = {'top_k': 2}"),
    "KaSA": (fields(kasa_config={"beta": 1}), "kasa_config = {'beta': 1}"),
    "MonteCLoRA": (fields(monteclora_config={"a": 1}), "monteclora_config = {'a': 1}"),
    "VeLoRA": (fields(velora_config={"a": 1}), "velora_config = {'a': 1}"),
    "methods other than LoRA": (fields(peft_type="IA3"), "peft_type = 'IA3'"),
    "fields that aren't known": (fields(use_magic=True), "use_magic = True"),
    "MLX: DoRA": (mlx(fine_tune_type="dora"), "fine_tune_type = 'dora'"),
    "MLX: full": (mlx(fine_tune_type="full"), "fine_tune_type = 'full'"),
    "MLX: alpha": (mlx(lora_parameters={"rank": 8, "scale": 2.0, "alpha": 16}), "lora_parameters.alpha"),
    "MLX: LoRA on the embedding": (mlx_embedding, "tensor model.embed_tokens.lora_a"),
    "scaled floats of 8 bits": (tensor(f"{Q}.lora_A.weight_scale", 1), f"tensor {Q}.lora_A.weight_scale"),
    "other number types": (
        lambda path, config: edit_tensors(path, lambda old: {key: value.double() for key, value in old.items()}),
        "is of type F64",
    ),
    "GGUF: LoRA on the embedding": (gguf_embedding, "tensor token_embd.weight.lora_a"),
    "whole weights": (tensor(f"{PREFIX}model.norm.weight", 64), "tensor base_model.model.model.norm.weight"),
    "added tokens": (tensor(f"{PREFIX}lm_head.weight", 328, 64), "has 328 rows, the base 320"),
}

OWN_WORDS = {
    "parts that don't belong together",
    "tensors that the config leaves out",
    "other number types",
    "added tokens",
}
"""Rows whose refusals say the particular case rather than the table's words."""


def test_every_row_has_a_case() -> None:
    rows = [row for _, part in ROWS for row in part]
    assert len(BY_NAME) == len(rows)
    assert set(APPLIED) == {row.name for row in rows if not row.code}
    assert set(REFUSED) == {row.name for row in rows if row.code}


def test_the_document_is_up_to_date() -> None:
    text = DOCUMENT.read_text()
    assert text == renewed(text), "run `make docs`"
    assert text.count("| refused: ") == len(REFUSED) and text.count("| applied |") == len(APPLIED)


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, made in APPLIED.items() for n in range(len(made))])
def test_what_is_applied_agrees_with_peft(name: str, number: int, base: Base, tmp_path: Path) -> None:
    check_agrees(base, APPLIED[name][number](tmp_path, base.config))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_so(name: str, base: Base, tmp_path: Path) -> None:
    change, words = REFUSED[name]
    path = make_adapter(tmp_path / "a", base.config)
    change(path, base.config)
    row = BY_NAME[name]
    with pytest.raises(AdapterRejected) as caught:
        load_adapter("mine", path, base.config, "digest")
    message = caught.value.message
    assert caught.value.code == row.code, message
    assert words in message
    if name not in OWN_WORDS:
        assert row.refusal in message


class Mix(NamedTuple):
    """A random adapter and how it's written."""

    options: dict[str, Any]
    format: str
    spelling: str
    parts: int
    fields: dict[str, Any]


def random_mix(dice: random.Random) -> Mix:
    """Any combination of what is applied, as far as the format can say it."""
    fmt = dice.choice(["PEFT", "PEFT", "GGUF", "MLX"])
    options: dict[str, Any] = {
        "rank": dice.choice([1, 2, 3, 5, 8, 13, 16, 33, 64]),
        "alpha": dice.choice([1, 8, 12.5, 16, 64, -4, 0.3]),
        "dtype": dice.choice([torch.float32, torch.float16, torch.bfloat16]),
        "modules": dice.choice(["all-linear", sorted(dice.sample(MODULES, dice.randint(1, 7)))]),
        "seed": dice.randrange(1 << 30),
    }
    if dice.random() < 0.3 and options["modules"] != "all-linear":
        options["layers"] = sorted(dice.sample(range(3), dice.randint(1, 3)))
    if dice.random() < 0.3:
        options["exclude_modules"] = [name for name in ("o_proj", "lm_head") if name not in options["modules"]] or None
    if fmt != "MLX" and dice.random() < 0.5:
        options["rank_pattern"] = {dice.choice(["q_proj", r".*\.1\..*", "mlp.down_proj"]): dice.randint(1, 20)}
    if fmt == "PEFT":
        options["rslora"] = dice.random() < 0.5
        options["fan_in_fan_out"] = dice.random() < 0.2
        if dice.random() < 0.5:
            options["alpha_pattern"] = {dice.choice(["v_proj", r"layers\.[02]\..*", "up_proj"]): dice.choice([2, 7.5])}
    changes: dict[str, Any] = {}
    if dice.random() < 0.3:
        changes["init_lora_weights"] = dice.choice([True, False, "gaussian", "eva", "mica"])
    if dice.random() < 0.2:
        changes |= {"target_modules": None, "layers_to_transform": None, "exclude_modules": None}
    spelling = dice.choice(["", "", *SPELLINGS])
    return Mix(options, fmt, spelling, dice.choice([0, 0, 1, 2, 4]), changes)


def written(mix: Mix, path: Path, config: ModelConfig) -> Made:
    like = make_adapter(path / "like", config, **mix.options)
    if mix.format == "GGUF":
        kind = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}[mix.options["dtype"]]
        return Made(to_gguf(like, path / "a.gguf", config, kind), like)
    if mix.format == "MLX":
        return Made(to_mlx(like, path / "mlx", config), like)
    folder = edit_config(make_adapter(path / "own", config, **mix.options), **mix.fields)
    if mix.spelling:
        change = SPELLINGS[mix.spelling][1]
        edit_tensors(folder, lambda old: {change(key): value for key, value in old.items()})
    return Made(to_shards(folder, mix.parts) if mix.parts else folder, like)


@pytest.mark.parametrize("seed", range(MIXES))
def test_random_mixes_agree_with_peft(seed: int, base: Base, tmp_path: Path) -> None:
    mix = random_mix(random.Random(seed))
    try:
        check_agrees(base, written(mix, tmp_path, base.config), seed)
    except BaseException as error:
        error.add_note(str(mix))
        raise


@pytest.mark.parametrize("seed", range(MIXES))
def test_random_mixes_with_one_refused_feature_are_refused(seed: int, base: Base, tmp_path: Path) -> None:
    """Whatever else an adapter has, one thing that can't be applied is the reason of a refusal."""
    dice = random.Random(seed)
    mix = random_mix(dice)._replace(format="PEFT", parts=0, spelling="", fields={})
    made = written(mix, tmp_path, base.config)
    load_adapter("mine", made.path, base.config, "digest")
    name = dice.choice([name for name in REFUSED if name != "tensors that the config leaves out"])
    if name.startswith(("GGUF", "MLX")):
        edit_config(made.path, use_rslora=False, rank_pattern={}, alpha_pattern={})
    change, _ = REFUSED[name]
    change(made.path, base.config)
    with pytest.raises(AdapterRejected) as caught:
        load_adapter("mine", made.path, base.config, "digest")
    assert caught.value.code == BY_NAME[name].code, (name, json.dumps(str(mix)), caught.value.message)
