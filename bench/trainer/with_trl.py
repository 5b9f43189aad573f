"""Contestant: TRL's trainers on the same batch. Run by bench/trainer/.venv, which has TRL.

KTO: KTOTrainer. The hint's lesson: SDFTTrainer, whose teacher is the base with something in its
prompt that the student does not see; GKDTrainer and DistillationTrainer show both the same prompt.
Two methods are replaced by what they would return, because nothing may be sampled or tokenised
anew: KTO's preparation of the dataset, and SDFT's generation. An update is timed from Trainer's
on_step_begin to its on_step_end; fetching the batch lies before.
"""

from __future__ import annotations

import tempfile
from typing import Any

from bench.trainer.contestant import Desk, Task, task  # first: it sets the threads

# isort: split
import torch
from datasets import Dataset
from peft import LoraConfig, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import KTOConfig, KTOTrainer
from trl.experimental.sdft import SDFTConfig, SDFTTrainer


def main() -> None:
    todo = task()
    desk = Desk(todo.device, todo.job)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        todo.base, dtype=torch.float32 if todo.device == "cpu" else torch.bfloat16
    ).to(todo.device)
    tokenizer = AutoTokenizer.from_pretrained(todo.base)
    desk.loaded()
    lora = LoraConfig.from_pretrained(todo.adapter)
    lora.inference_mode = False
    losses: list[float] = []
    make = sdft_trainer if todo.loss == "opd" else kto_trainer
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(todo, folder)
        trainer = make(todo, settings, losses, model=model, tokenizer=tokenizer, lora=lora)
        weights = load_file(todo.adapter / "adapter_model.safetensors")
        set_peft_model_state_dict(trainer.model, weights)
        trainer.add_callback(Timer(desk, losses, begins_anew=todo.loss != "opd"))
        desk.ready()
        trainer.train()


class Timer(TrainerCallback):  # type: ignore[misc]
    """One update when told to. TRL logs after each, and with it the gradient's norm. `begins_anew`:
    without Adam's moments, as our jobs of thumbs alone do."""

    def __init__(self, desk: Desk, losses: list[float], *, begins_anew: bool) -> None:
        self.desk, self.losses, self.begins_anew = desk, losses, begins_anew

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.desk.wait()
        self.desk.start()

    def on_step_end(self, *_: Any, optimizer: Any, **__: Any) -> None:
        self.desk.stop()
        if self.begins_anew:
            optimizer.state.clear()

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "grad_norm" in logs:  # the last log is of the whole run
            self.desk.done(loss=self.losses[-1], grad_norm=float(logs["grad_norm"]))


def settings_of(todo: Task, folder: str) -> dict[str, Any]:
    """What both trainers are told. What is not named is left at TRL's default."""
    numbers = todo.settings
    return {
        "output_dir": folder,
        "per_device_train_batch_size": len(todo.rows),
        "gradient_checkpointing": todo.variant != "no_checkpoints",  # on by default
        "max_steps": todo.updates,
        "learning_rate": numbers["lr"],
        "lr_scheduler_type": "constant",
        "adam_beta1": numbers["beta1"],
        "adam_beta2": numbers["beta2"],
        "weight_decay": 0.0,
        "max_grad_norm": numbers["grad_clip"],
        "bf16": todo.precision == "bf16",
        "use_cpu": todo.device == "cpu",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def kto_trainer(
    todo: Task,
    settings: dict[str, Any],
    losses: list[float],
    *,
    model: Any,
    tokenizer: Any,
    lora: LoraConfig,
) -> KTOTrainer:
    class FixedKTO(KTOTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
            return dataset

        def compute_loss(self, *args: Any, **more: Any) -> Any:
            loss = super().compute_loss(*args, **more)
            losses.append(float(loss.detach()))
            return loss

    replies = [row["response_ids"] for row in todo.rows]
    columns = {
        "prompt_ids": [row["prompt_ids"] for row in todo.rows],
        "completion_ids": replies,
        "label": [row["liked"] for row in todo.rows],
    }
    if todo.loss == "kto":  # each prompt with its neighbour's reply; TRL takes the other neighbour
        columns["KL_completion_ids"] = [*replies[1:], replies[0]]
    return FixedKTO(
        model=model,
        args=KTOConfig(
            **settings,
            loss_type=todo.loss,
            beta=todo.settings["kto_beta"],
            train_sampling_strategy="sequential",
        ),
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
        peft_config=lora,
    )


def sdft_trainer(
    todo: Task,
    settings: dict[str, Any],
    losses: list[float],
    *,
    model: Any,
    tokenizer: Any,
    lora: LoraConfig,
) -> SDFTTrainer:
    given = {tuple(row["prompt_ids"]): row["response_ids"] for row in todo.rows}

    class FixedSDFT(SDFTTrainer):  # type: ignore[misc]
        def _generate(self, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
            return prompt_ids, [given[tuple(ids)] for ids in prompt_ids]

        def compute_loss(self, *args: Any, **more: Any) -> Any:
            loss = super().compute_loss(*args, **more)
            losses.append(float(loss.detach()))
            return loss

    rows = [
        {"prompt": row["messages"], "privileged_context": row["hint_block"]} for row in todo.rows
    ]
    return FixedSDFT(
        model=model,
        args=SDFTConfig(
            **settings,
            distillation_mode="full_logits",
            distillation_alpha=1.0,  # the reverse KL
            teacher_model_kind="base",
            teacher_prompt_template="{prompt}{privileged_context}",
            num_generations=1,
            shuffle_dataset=False,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora,
    )


if __name__ == "__main__":
    main()
