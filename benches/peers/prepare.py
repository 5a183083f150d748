"""Makes what the peers load: the dequantised base, the random adapters, and the reference first tokens.

Run by `install.py` with the Python that has torch, transformers and peft:

    python prepare.py base|adapters|reference [--dir FOLDER]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging

from cases import FAR_LOGITS, prefill_reference, reference_key
from layout import ADAPTERS, Layout, adapter_name
from prompts import PREFILL_TOKENS, PROMPT_TOKENS, STREAMS_MAX, VARIANTS, prompt

RANK = 16
UP_SCALE = 0.1
"""Large enough that each adapter answers each prompt in its own way, so that a mix-up shows."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def make_base(layout: Layout) -> None:
    """Dequantises the GGUF into a Hugging Face folder and proves it equal to the file."""
    gguf, out = layout.gguf, layout.base_hf
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    compare_with_file(gguf, model)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    check_folder(out, model)


def compare_with_file(path: Path, model: torch.nn.Module) -> None:
    """Every tensor of the model against the file, read here on its own.

    The Llama family's GGUF stores the rows of q and k with the two rotary halves interleaved; a head's row
    2*i+h in the file is row h*(d/2)+i in Hugging Face's order.
    """
    state, config, seen = model.state_dict(), model.config, set()
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    hf_of = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    for layer in range(config.num_hidden_layers):
        for hf, short in GGUF_NAMES.items():
            hf_of[f"blk.{layer}.{short}"] = f"model.layers.{layer}.{hf}"
    for tensor in GGUFReader(path).tensors:
        name = tensor.name.removesuffix(".weight")
        ours = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        count = heads.get(name.rsplit(".", 1)[-1])
        if count:
            ours = ours.reshape(count, -1, 2, ours.shape[-1]).transpose(1, 2).reshape(ours.shape)
        key = hf_of[name] + ".weight"
        if not torch.equal(ours.reshape(state[key].shape), state[key]):
            sys.exit(f"{key}: what transformers read differs from the file")
        seen.add(key)
    left = set(state) - seen - {"lm_head.weight"}
    if left or not torch.equal(state["lm_head.weight"], state["model.embed_tokens.weight"]):
        sys.exit(f"tensors that the file does not explain: {sorted(left) or 'an untied lm_head'}")
    print(f"  {len(seen)} tensors equal to the file's", flush=True)


@torch.inference_mode()
def check_folder(folder: Path, model: torch.nn.Module) -> None:
    """The saved folder gives the same logits as the model read from the GGUF, and answers sensibly."""
    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([prompt(0, 0)])
    worst = (again(ids).logits - model(ids).logits).abs().max().item()
    if worst > 1e-4:
        sys.exit(f"logits of the saved folder are off by {worst}")
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = again.generate(**chat, max_new_tokens=24, do_sample=False)
    text = tokenizer.decode(out[0][chat["input_ids"].shape[1] :], skip_special_tokens=True)
    if "Paris" not in text:
        sys.exit(f"the dequantised base says: {text!r}")
    print(f"  logits within {worst:.1e} of the GGUF's; says {text!r}", flush=True)


def make_adapters(layout: Layout) -> None:
    """Random adapters, rank 16 on all seven linear modules, bf16, in PEFT's format (9.4 MiB each)."""
    config = json.loads((layout.base_hf / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    sizes = {"q_proj": (hidden, hidden), "k_proj": (hidden, kv), "v_proj": (hidden, kv)}
    sizes |= {"o_proj": (hidden, hidden), "gate_proj": (hidden, inner), "up_proj": (hidden, inner)}
    sizes |= {"down_proj": (inner, hidden)}
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "smollm2",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "target_modules": [*ATTENTION, *MLP],
        "bias": "none",
        "inference_mode": True,
    }
    for index in range(ADAPTERS):
        generator = torch.Generator().manual_seed(index)
        tensors = {}
        for layer in range(config["num_hidden_layers"]):
            for module, (n_in, n_out) in sizes.items():
                block = "self_attn" if module in ATTENTION else "mlp"
                stem = f"base_model.model.model.layers.{layer}.{block}.{module}"
                down = torch.randn(RANK, n_in, generator=generator) / n_in**0.5
                up = torch.randn(n_out, RANK, generator=generator) * UP_SCALE
                tensors[f"{stem}.lora_A.weight"] = down.bfloat16()
                tensors[f"{stem}.lora_B.weight"] = up.bfloat16()
        folder = layout.adapter(index)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1))
    print(f"  {ADAPTERS} adapters made", flush=True)


@torch.inference_mode()
def make_reference(layout: Layout, tokens: int) -> None:
    """Each likely first text after each prompt, and how far its logit is below the best: base and adapter."""
    from peft import PeftModel

    long = tokens != PROMPT_TOKENS
    tokenizer = AutoTokenizer.from_pretrained(layout.base_hf)
    base = AutoModelForCausalLM.from_pretrained(layout.base_hf, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, str(layout.adapter(0)), adapter_name=adapter_name(0)).eval()
    below_of: dict[str, dict[str, float]] = {}
    streams = 1 if long else STREAMS_MAX
    for stream in range(streams):
        name = adapter_name(stream)
        if stream:
            model.load_adapter(str(layout.adapter(stream)), adapter_name=name)
        model.set_adapter(name)
        ids = torch.tensor([prompt(variant, stream, tokens) for variant in range(VARIANTS)])
        with model.disable_adapter():
            plain = model(ids, logits_to_keep=1).logits[:, -1]
        adapted = model(ids, logits_to_keep=1).logits[:, -1]
        for kind, logits in (("base", plain), ("lora", adapted)):
            for variant, row in enumerate(logits):
                below = (row.max() - row).tolist()
                known = below_of.setdefault(reference_key(kind, variant, stream, tokens), {})
                for token in (row >= row.max() - FAR_LOGITS).nonzero().flatten().tolist():
                    text = tokenizer.decode([token])
                    known[text] = min(round(below[token], 3), known.get(text, FAR_LOGITS))
        print(f"\r  reference {stream + 1}/{streams}", end="", flush=True)
    print()
    path = prefill_reference(layout.reference) if long else layout.reference
    path.write_text(json.dumps(below_of, indent=0))


def main() -> None:
    """Does one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["base", "adapters", "reference", "prefill-reference"])
    parser.add_argument("--dir", default=None)
    options = parser.parse_args()
    logging.disable_progress_bar()
    steps: dict[str, Callable[[Layout], None]] = {
        "base": make_base,
        "adapters": make_adapters,
        "reference": lambda layout: make_reference(layout, PROMPT_TOKENS),
        "prefill-reference": lambda layout: make_reference(layout, PREFILL_TOKENS),
    }
    steps[options.step](Layout.of(options.dir))


if __name__ == "__main__":
    main()
