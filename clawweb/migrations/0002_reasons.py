"""The reason chips that a new installation starts with; admins edit them."""

from __future__ import annotations

from typing import Any

from django.db import migrations

REASONS = [
    # slug, label, hint, axis, pole
    ("too_long", "Too long",
     "Please answer in one or two short sentences, at most 30 words. No lists.", "length", "short"),
    ("too_short", "Too short",
     "Please answer in detail, with several full paragraphs.", "length", "long"),
    ("no_lists", "No lists, please",
     "Please answer in plain prose, without lists, headings or bold text.", "layout", "prose"),
    ("use_lists", "Should be a list",
     "Please answer with a clear bulleted or numbered list.", "layout", "list"),
    ("too_formal", "Too formal",
     "Please answer in a warm, casual tone, as a friend would.", "tone", "casual"),
    ("too_casual", "Too casual",
     "Please answer in a formal tone, without contractions.", "tone", "formal"),
    ("too_hard", "Hard to follow",
     "Please use simple everyday words that a child could follow.", "level", "simple"),
    ("greet_me", "Greet me first",
     "Please begin your answer with a friendly greeting.", "greeting", "greet"),
    ("ignored_me", "Did not do what I asked",
     "Please do exactly what the message asks, and only that.", "", ""),
    ("wrong", "Not true",
     "Please say only what you are sure of, and say so when you are not.", "", ""),
]


def add_reasons(apps: Any, schema_editor: Any) -> None:
    reason = apps.get_model("clawweb", "FeedbackReason")
    for position, (slug, label, hint, axis, pole) in enumerate(REASONS):
        reason.objects.get_or_create(
            slug=slug,
            defaults={"label": label, "hint": hint, "axis": axis, "pole": pole, "position": position},
        )


class Migration(migrations.Migration):
    dependencies = [("clawweb", "0001_initial")]
    operations = [migrations.RunPython(add_reasons, migrations.RunPython.noop)]
