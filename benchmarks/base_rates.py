"""How often the base model shows each style of the demo, before anything is learned.

::

    python -m benchmarks.base_rates --answers 192 --json docs/results/base-rates.json

Rates of quality × style, as the users rate it, with 95% Wilson intervals. They decide how fast a taste can be learned:
only rewarded answers teach.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer

from online_rl.base_model import find_model
from online_rl.config import load_settings
from online_rl.demo.quality import score_quality
from online_rl.demo.styles import MAX_NEW_TOKENS, STYLES, TEMPERATURE, build_messages, score_answer
from online_rl.demo.topics import TRAINING_TOPICS

BATCH = 16


def sample_answers(folder: Path, topics: Sequence[str], temperature: float, seed: int) -> Iterator[str]:
    """One answer to the demo's question about each topic."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for start in track(range(0, len(topics), BATCH), "answering", console=Console(stderr=True)):
        prompts = [
            tokenizer.apply_chat_template(build_messages(topic), tokenize=False, add_generation_prompt=True)
            for topic in topics[start : start + BATCH]
        ]
        encoded = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            found = model.generate(
                **encoded,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                max_new_tokens=MAX_NEW_TOKENS,
                pad_token_id=tokenizer.pad_token_id,
            )
        yield from tokenizer.batch_decode(found[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)


def rate_interval(hits: int, count: int) -> dict[str, Any]:
    """Rate and its 95% Wilson interval."""
    interval = stats.binomtest(hits, count).proportion_ci(method="wilson")
    return {"rate": hits / count, "low": float(interval.low), "high": float(interval.high)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--answers", type=int, default=192)
    parser.add_argument("--temperature", type=float, default=TEMPERATURE)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    topics = random.Random(options.seed).choices(TRAINING_TOPICS, k=options.answers)
    folder = find_model(load_settings().model_path)
    answers = list(sample_answers(folder, topics, options.temperature, options.seed))
    hits = {style: sum(score_answer(style, answer) for answer in answers) for style in STYLES}
    hits["quality alone"] = sum(map(score_quality, answers))
    rates = {name: rate_interval(int(count), len(answers)) for name, count in hits.items()}
    table = Table(title=f"{len(answers)} answers of {folder.name} at temperature {options.temperature}")
    for column in ("taste", "rate", "95% interval"):
        table.add_column(column)
    for name, found in rates.items():
        table.add_row(name, f"{found['rate']:.2f}", f"{found['low']:.2f} … {found['high']:.2f}")
    Console().print(table)
    if options.json:
        report = {"model": folder.name, "answers": len(answers), "temperature": options.temperature, "rates": rates}
        options.json.write_text(json.dumps(report | {"seed": options.seed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
