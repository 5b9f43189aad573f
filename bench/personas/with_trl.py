"""One update of TRL's KTOTrainer on rated replies. Run by bench/trainer/.venv, which has TRL.

Told in a file of JSON: `base` and `parent` (folders), `out`, `loss` (kto or apo_zero_unpaired),
`lr` (None: TRL's default; a number stays constant), `epochs`, `seed`, and `rows` of prompt_ids,
response_ids and liked.
Sampled ids train as they are: TRL's own preparation, which would tokenise text anew, is left out.
All else is TRL's default.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

# isort: split
from datasets import Dataset
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import KTOConfig, KTOTrainer

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"


class OnIds(KTOTrainer):  # type: ignore[misc]
    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    parent, out = Path(told["parent"]), Path(told["out"])
    lora = LoraConfig.from_pretrained(parent)
    lora.inference_mode = False
    with tempfile.TemporaryDirectory() as folder:
        trainer = OnIds(
            model=AutoModelForCausalLM.from_pretrained(told["base"], dtype="float32"),
            args=arguments(told, folder),
            train_dataset=dataset(told["rows"], told["loss"]),
            processing_class=AutoTokenizer.from_pretrained(told["base"]),
            peft_config=lora,
        )
        set_peft_model_state_dict(trainer.model, load_file(parent / WEIGHTS))
        trainer.train()
    weights = get_peft_model_state_dict(trainer.model)
    out.mkdir(parents=True)
    save_file({name: each.detach().contiguous() for name, each in weights.items()}, out / WEIGHTS)
    shutil.copy(parent / SETTINGS, out / SETTINGS)
    print(json.dumps({"steps": trainer.state.global_step}))


def arguments(told: dict[str, Any], folder: str) -> KTOConfig:
    rate = told["lr"]
    chosen = {} if rate is None else {"learning_rate": rate, "lr_scheduler_type": "constant"}
    return KTOConfig(
        output_dir=folder,
        loss_type=told["loss"],
        num_train_epochs=told["epochs"],
        per_device_train_batch_size=len(told["rows"]),
        seed=told["seed"],
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **chosen,
    )


def dataset(rows: list[dict[str, Any]], loss: str) -> Dataset:
    replies = [row["response_ids"] for row in rows]
    columns = {
        "prompt_ids": [row["prompt_ids"] for row in rows],
        "completion_ids": replies,
        "label": [row["liked"] for row in rows],
    }
    if loss == "kto":  # each prompt with another's reply; TRL takes the one before
        columns["KL_completion_ids"] = [*replies[1:], replies[0]]
    return Dataset.from_dict(columns)


if __name__ == "__main__":
    main()
