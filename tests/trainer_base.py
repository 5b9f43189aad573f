"""The base model of the running system, as its trainer has it before a job begins."""

from __future__ import annotations

from tests.realstack import Stack
from training.base import Base, load_base
from training.small_talk import wish_probe


def trainer_base(stack: Stack) -> Base:
    """By the template of that system, whose worker has read the examples of small talk already, or
    is reading them: a job has no time for that."""
    base = load_base(
        stack.config.model_folder,
        threads=1,
        chat_template=stack.config.template_file,
        kept=stack.config.var / "small-talk",
    )
    wish_probe(base, base.model)
    return base
