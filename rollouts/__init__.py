"""Talks to a served language model and keeps exactly what happened. Knows no web and no torch."""
