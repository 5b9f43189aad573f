"""Turns samples into LoRA adapters. Here live torch, transformers, peft; no web, no table."""
