"""Times the CPU operators beside torch's, interleaved, on this machine: `make bench`.

Each line is the median of the repeats with their spread (half the middle 80%). Weights rotate over copies larger than
the last cache, as the layers of a model do. A side whose answer is wrong prints no time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from sides import PAGE_BYTES, LoraLayers, bandwidth, normal, rng, time_interleaved

from lorad import _core

COLD_BYTES = 96 << 20
"""Copies of a weight together hold at least this much, so that each is read from memory."""


def show(case: str, found: dict[str, tuple[float, float]], work: str = "") -> None:
    columns = "  ".join(f"{name} {median:9.1f} ± {spread:6.1f}" for name, (median, spread) in found.items())
    print(f"{case:34s} {columns}  {work}", flush=True)


def check(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    return bool(np.abs(got - wanted).max() <= tolerance * np.abs(wanted).max())


def bench_qmatmul(repeats: int, rows: Sequence[int]) -> None:
    print("\nquantised products: µs; torch on the dequantised weight and its packed int4 (group 64), both cold")
    for kind, out, inputs in [
        ("Q4_1", 576, 576),
        ("Q4_1", 1536, 576),
        ("Q4_1", 576, 1536),
        ("Q8_0", 49152, 576),
    ]:
        type_ = GGMLQuantizationType[kind]
        data = quants.quantize(normal(out, inputs), type_)
        weight = quants.dequantize(data, type_)
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        matrices = [_core.QuantMatrix(kind, flat, out, inputs) for _ in range(max(1, COLD_BYTES // data.nbytes))]
        dense = [torch.from_numpy(weight).clone() for _ in range(max(1, COLD_BYTES // weight.nbytes))]
        packed = []
        if kind == "Q4_1":
            int4 = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
                torch.randint(0, 16, (out, inputs), dtype=torch.int32), 1
            )
            packed = [int4.clone() for _ in range(COLD_BYTES // int4.numel())]
            scales = torch.ones(inputs // 64, out, 2, dtype=torch.bfloat16)
        for n in rows:
            x, y = normal(n, inputs), np.empty((n, out), dtype=np.float32)
            x_torch, y_torch = torch.from_numpy(x), torch.empty(n, out)
            x_half = x_torch.bfloat16()
            sides: dict[str, Callable[[int], None]] = {}
            matrices[0].matmul(y, x)
            if check(y, x @ weight.T, 0.02):
                sides["lorad"] = lambda i, y=y, x=x: matrices[i % len(matrices)].matmul(y, x)
            sides["fp32"] = lambda i, y=y_torch, x=x_torch: torch.mm(x, dense[i % len(dense)].t(), out=y)
            if packed:
                # With f32 activations it falls back to a reference: bf16 is its best.
                sides["int4"] = lambda i, x=x_half: torch.ops.aten._weight_int4pack_mm_for_cpu(
                    x, packed[i % len(packed)], 64, scales
                )
            found = time_interleaved(sides, repeats)
            us = found.get("lorad", (float("nan"), 0))[0]
            rate = f"{n * out * inputs / us / 1e3:6.1f} GMAC/s {data.nbytes / us / 1e3:5.1f} GB/s"
            show(f"{kind} {out}x{inputs}, {n} rows", found, rate)


def bench_lora(repeats: int) -> None:
    print("\nLoRA, all seven modules of a layer: µs a layer, bytes of A and B against the clock")
    for name, ranks, tokens in [
        ("32 groups x 1 token, r=16", [16] * 32, 1),
        ("32 groups x 1 token, r=128", [128] * 32, 1),
        ("8 groups x 1 token, r=16", [16] * 8, 1),
        ("7 x r=8 and 1 x r=128, 1 token", [8] * 7 + [128], 1),
        ("8 groups x 1 token, r=8", [8] * 8, 1),
        ("1 group x 1 token, r=16", [16], 1),
        ("1 group x 8 tokens, r=16", [16], 8),
        ("1 group x 32 tokens, r=16", [16], 32),
        ("1 group x 512 tokens, r=16", [16], 512),
        ("1 group x 512 tokens, r=128", [128], 512),
    ]:
        layers = max(1, min(30, (2 * COLD_BYTES) // (sum(ranks) * 20352)))
        loras = LoraLayers(ranks, tokens, layers)
        found = time_interleaved({"lorad": loras.layer}, repeats)
        us = found["lorad"][0]
        flops = 2 * tokens * loras.bytes / 2
        show(name, found, f"{loras.bytes / us / 1e3:6.1f} GB/s {flops / us / 1e3:6.1f} GFLOP/s")


def bench_attention(repeats: int) -> None:
    print("\npaged attention, 9 heads on 3 KV heads of 64, f16 pages: µs a layer; torch: its own on contiguous f32")
    geometry, heads = (30, 3, 16, 64, "f16"), 9
    for name, rows, start, new in [
        ("32 rows, 192 tokens, decode", 32, 191, 1),
        ("8 rows, 192 tokens, decode", 8, 191, 1),
        ("1 row, 192 tokens, decode", 1, 191, 1),
        ("1 row, 4096 tokens, decode", 1, 4095, 1),
        ("1 row, prefill 128", 1, 0, 128),
        ("1 row, prefill 512", 1, 0, 512),
        ("1 row, 512 after 1536", 1, 1536, 512),
    ]:
        columns = -(-(start + new) // 16)
        pages = rows * columns
        values = normal(pages, PAGE_BYTES // 2).astype(np.float16)
        arena = values.view(np.uint8)
        table = rng.permutation(pages).astype(np.int32).reshape(rows, columns)
        q = normal(rows * new, (heads + 6) * 64)
        out = np.empty((rows * new, heads * 64), dtype=np.float32)
        line = np.arange(rows, dtype=np.int32)
        starts = np.full(rows, start, dtype=np.int32)
        offsets = np.arange(rows + 1, dtype=np.int32) * new
        tq = torch.from_numpy(normal(rows, heads, new, 64))
        tk, tv = (torch.from_numpy(normal(rows, 3, start + new, 64)) for _ in range(2))

        def own(i: int) -> None:
            _core.paged_attention(out, q, arena, geometry, i % 30, table, line, starts, offsets, 0.125)

        def theirs(i: int) -> None:
            torch.nn.functional.scaled_dot_product_attention(
                tq,
                tk,
                tv,
                is_causal=new > 1 and start == 0,
                enable_gqa=True,
            )

        found = time_interleaved({"lorad": own, "torch": theirs}, repeats)
        us = found["lorad"][0]
        pairs = rows * sum(start + i + 1 for i in range(new))
        kv_bytes = rows * (start + new) * 3 * 64 * 2 * 2
        work = f"{pairs * heads * 64 * 4 / us / 1e3:6.1f} GFLOP/s {kv_bytes / us / 1e3:5.1f} GB/s"
        show(name, found, work)


def bench_small(repeats: int) -> None:
    print("\nthe rest: µs")
    for n in (1, 32, 512):
        hidden, gate_up = normal(n, 576), normal(n, 3072)
        weight, gated, normed = normal(576), np.empty((n, 1536), dtype=np.float32), np.empty_like(hidden)
        branch = normal(n, 576) * 1e-6
        show(
            f"add_rms_norm {n} x 576",
            time_interleaved({"lorad": lambda i: _core.add_rms_norm(normed, hidden, branch, weight, 1e-5)}, repeats),
        )
        show(
            f"gate_mul {n} x 1536",
            time_interleaved({"lorad": lambda i: _core.gate_mul(gated, gate_up, "silu")}, repeats),
        )
        geometry = (30, 3, 16, 64, "f16")
        columns = -(-n // 16) if n == 512 else 1
        lines = 1 if n == 512 else n
        arena = np.zeros((lines * columns, PAGE_BYTES), dtype=np.uint8)
        table = np.arange(lines * columns, dtype=np.int32).reshape(lines, columns)
        position = np.arange(n, dtype=np.int32) if n == 512 else np.zeros(n, dtype=np.int32)
        line = np.zeros(n, dtype=np.int32) if n == 512 else np.arange(n, dtype=np.int32)
        angles, qkv = normal(2048, 32), normal(n, 960)
        show(
            f"rope_write {n} x 960",
            time_interleaved(
                {
                    "lorad": lambda i: _core.rope_write(
                        qkv,
                        angles,
                        angles,
                        position,
                        line,
                        table,
                        arena,
                        geometry,
                        i % 30,
                    )
                },
                repeats,
            ),
        )
    for name, temperature, top_k, top_p, with_logprobs in [
        ("greedy", 0.0, 0, 1.0, False),
        ("greedy, logprobs", 0.0, 0, 1.0, True),
        ("temperature", 0.8, 0, 1.0, False),
        ("temperature, top_k 40", 0.8, 40, 1.0, False),
        ("temperature, top_p 0.9", 0.8, 0, 0.9, False),
    ]:
        rows = 32
        logits = normal(rows, 49152) * 3
        tokens, logprobs = np.empty(rows, dtype=np.int32), np.empty(rows, dtype=np.float32)
        parameters = (
            np.full(rows, temperature, dtype=np.float32),
            np.full(rows, top_k, dtype=np.int32),
            np.full(rows, top_p, dtype=np.float32),
            np.zeros(rows, dtype=np.float32),
            np.arange(rows, dtype=np.uint64),
            np.arange(rows, dtype=np.int32),
        )
        show(
            f"sample 32 x 49152, {name}",
            time_interleaved(
                {"lorad": lambda i: _core.sample(tokens, logprobs if with_logprobs else None, logits, *parameters)},
                repeats,
            ),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 128, 512])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=["qmatmul", "lora", "attention", "small"], nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    _core.set_threads(arguments.threads)
    features = _core.cpu_features()
    present = " ".join(name for name, value in features.items() if value is True)
    print(f"{arguments.threads} threads, level {features['level']} ({present}), torch {torch.__version__}")
    print(f"memory reads {bandwidth():.1f} GB/s")
    wanted = arguments.only or ["qmatmul", "lora", "attention", "small"]
    if "qmatmul" in wanted:
        bench_qmatmul(arguments.repeats, arguments.rows)
    if "lora" in wanted:
        bench_lora(arguments.repeats)
    if "attention" in wanted:
        bench_attention(arguments.repeats)
    if "small" in wanted:
        bench_small(arguments.repeats)


if __name__ == "__main__":
    main()
