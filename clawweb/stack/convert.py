"""GGUF file -> folder of safetensors and tokenizer. Run as a process of its own, for its memory."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(gguf: Path, target: Path) -> None:
    # transformers 5.23 keeps GGUF weights packed, and then cannot save them, unless told otherwise.
    options = {}
    try:
        from transformers import GgufConfig
    except ImportError:
        pass
    else:
        options["quantization_config"] = GgufConfig(dequantize=True)
    source = str(gguf.parent)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=gguf.name, dtype=torch.bfloat16, **options
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
