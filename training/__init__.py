"""Turns samples into LoRA adapters. torch, transformers and peft live here; no web, no queue, no table."""
