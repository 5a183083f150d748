"""Other people's clients, unmodified, against a real server with the embedded base and its tenants: `make clients`.

- lm_eval (local-completions, log-probabilities by `echo`): a multiple choice on a tenant's held-out set. Its score must
  be that of transformers + PEFT on the dequantised base, but for questions whose best choices are close together
- LiteLLM, LangChain: a chat with a tenant's adapter, whole and streamed, which must be the server's own answer

They're installed in a folder of their own: their dependencies aren't ours.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml

from lorad.demo.base import embedded_base
from lorad.text.model import load_text_model
from served_process import Serving

TENANTS = Path(__file__).parents[2] / "py/lorad/demo/tenants"
QUESTIONS, CHOICES = 24, 4
CLOSE = 0.05
"""Natural log: choices nearer than this may change places, as the server computes with quantised weights."""
FAR = 0.2
"""Likewise, of a token: a choice whose sum differs by more for each of its tokens is another sum."""


def questions(tenant: str, text: Any) -> list[dict[str, Any]]:
    """Of each held-out prompt the right answer among others', in the chat form that the tenant was trained on."""
    rows = [json.loads(line) for line in (TENANTS / tenant / "heldout.jsonl").read_text().splitlines()]
    dice, made = random.Random(tenant), []
    for row in rows[:QUESTIONS]:
        others = dice.sample([other["response"] for other in rows if other["response"] != row["response"]], CHOICES - 1)
        choices = [*others, row["response"]]
        dice.shuffle(choices)
        prompt = text.template.render([{"role": "user", "content": row["prompt"]}])
        made.append({"question": prompt, "choices": choices, "label": choices.index(row["response"])})
    return made


def run_lm_eval(python: Path, url: str, tenant: str, folder: Path, text: Any) -> tuple[float, list[dict[str, Any]]]:
    """Its accuracy, and the questions."""
    made = questions(tenant, text)
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    task = {
        "task": f"{tenant}_choice",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "questions.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    (folder / "task.yaml").write_text(yaml.safe_dump(task))
    tokenizer = folder / "tokenizer"
    tokenizer.mkdir()
    text.tokenizer.core.save(str(tokenizer / "tokenizer.json"))
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": text.tokenizer.eos_token})
    )
    arguments = {
        "model": tenant,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(tokenizer),
        "tokenized_requests": "True",
        "num_concurrent": "4",
        "max_retries": "1",
    }
    command = [str(python), "-m", "lm_eval", "--model", "local-completions", "--tasks", task["task"]]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in arguments.items())]
    command += ["--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "OPENAI_API_KEY": "none"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    (results,) = (folder / "out").rglob("results_*.json")
    (samples,) = (folder / "out").rglob("samples_*.jsonl")
    accuracy = float(json.loads(results.read_text())["results"][task["task"]]["acc,none"])
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        made[sample["doc_id"]]["served"] = [float(score[0][0]) for score in sample["resps"]]
    return accuracy, made


def reference(tenant: str, made: list[dict[str, Any]], text: Any) -> float:
    """transformers + PEFT on the dequantised base: its accuracy. Questions get their choices' `scores` and `tokens`."""
    from oracle import oracle

    right, judge = 0, oracle(Path(embedded_base()))
    for one in made:
        # lm_eval gives the blanks that end a prompt to what follows.
        prompt = one["question"].rstrip()
        known = len(text.encode(prompt))
        endings = [text.encode(one["question"] + choice)[known:] for choice in one["choices"]]
        one["tokens"] = list(map(len, endings))
        one["scores"] = scores = judge.scores(text.encode(prompt), endings, TENANTS / tenant)
        right += scores.index(max(scores)) == one["label"]
    return right / len(made)


CHAT = """
import sys
url, model, client = sys.argv[1:]
messages = [{"role": "user", "content": "Define: lawyer"}]
if client == "litellm":
    import litellm
    fields = dict(model=f"openai/{model}", api_base=url + "/v1", api_key="none", messages=messages, temperature=0)
    whole = litellm.completion(**fields, max_tokens=24).choices[0].message.content
    stream = litellm.completion(**fields, max_tokens=24, stream=True)
    pieces = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
else:
    from langchain_openai import ChatOpenAI
    chat = ChatOpenAI(model=model, base_url=url + "/v1", api_key="none", temperature=0, max_tokens=24)
    asked = [(one["role"], one["content"]) for one in messages]
    whole, pieces = chat.invoke(asked).content, "".join(chunk.content for chunk in chat.stream(asked))
assert whole == pieces, (whole, pieces)
print(whole)
"""


def main() -> int:
    """Runs them all; 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", type=Path, help="of the environment that has the clients")
    parser.add_argument("--tenants", nargs="*", default=["wordnet", "devil"], help="that lm_eval scores")
    options = parser.parse_args()
    names = sorted(path.parent.name for path in TENANTS.glob("*/tenant.json"))
    # Deterministic: an answer must not change with what an earlier one left in the prefix cache.
    server = Serving("smollm2", "--deterministic", "--lora-modules", *(f"{name}={TENANTS / name}" for name in names))
    text, wrong = load_text_model(embedded_base()), 0
    try:
        for tenant in options.tenants:
            with tempfile.TemporaryDirectory() as folder:
                served, made = run_lm_eval(options.python, server.url, tenant, Path(folder), text)
            expected = reference(tenant, made, text)
            close = sum(
                sorted(one["scores"])[-1] - sorted(one["scores"])[-2] < CLOSE * len(one["scores"]) for one in made
            )
            off = max(
                abs(a - b) / tokens
                for one in made
                for a, b, tokens in zip(one["served"], one["scores"], one["tokens"], strict=True)
            )
            fine = abs(served - expected) * len(made) <= close and off <= FAR
            wrong += not fine
            sys.stdout.write(
                f"lm_eval on {tenant}: accuracy {served:.3f}, transformers + PEFT {expected:.3f} "
                f"({len(made)} questions, {close} of them close; log-probabilities within {off:.3f} a token): "
                f"{'the same' if fine else 'ANOTHER'}\n"
            )
        body: dict[str, object] = {"model": "devil", "temperature": 0, "max_tokens": 24}
        body["messages"] = [{"role": "user", "content": "Define: lawyer"}]
        own: Any = server.post("/v1/chat/completions", body)[1]
        for client in ("litellm", "langchain"):
            command = [str(options.python), "-c", CHAT, server.url, "devil", client]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
            expected = own["choices"][0]["message"]["content"].strip()
            wrong += said != expected
            sys.stdout.write(f"{client}: {said!r}: {'the same' if said == expected else f'ANOTHER: {expected!r}'}\n")
    finally:
        server.stop()
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
