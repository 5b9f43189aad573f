"""Base models with random weights, in the shapes of known ones: time and memory hang on shapes.

    PYTHONPATH=. python -m bench.trainer.shapes --shape qwen3-0.6b --device cuda --out FOLDER \\
        --tokenizer var/models/SmolLM2-135M-Instruct

The tokenizer is another model's; it must know no more words than the shape has.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    PretrainedConfig,
    Qwen3Config,
)

QWEN3_WORDS = 151936
SPREAD = 0.04  # so that some words before a reply move it by about a nat per token, as a hint does
SHAPES: dict[str, PretrainedConfig] = {  # of SmolLM2-135M, Qwen3-0.6B and Qwen3-4B
    "smollm2": LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True,
    ),
    "qwen3-0.6b": Qwen3Config(
        vocab_size=QWEN3_WORDS, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
        initializer_range=SPREAD,
    ),
    "qwen3-4b": Qwen3Config(
        vocab_size=QWEN3_WORDS, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
        initializer_range=SPREAD,
    ),
}  # fmt: skip


def random_model(shape: str, device: str) -> Any:
    """In fp32 on a CPU, in bf16 on a GPU, as the trainer holds its base there."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    with torch.device(device):
        return AutoModelForCausalLM.from_config(SHAPES[shape], dtype=dtype)  # type: ignore[no-untyped-call]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of a model with one")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    model = random_model(args.shape, args.device)
    assert len(tokenizer) <= model.config.vocab_size
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
