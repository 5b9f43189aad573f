"""Reasons know how people say them in words of their own."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

PHRASES = {
    "too_long": """
        too long|too wordy|too verbose|too much text|shorter|briefer|be brief|more brief|keep it short
        keep it brief|short answer|short answers|answer briefly|concise|to the point|fewer words
        in one sentence|in two sentences|in a sentence|less text|less detail|fewer details
        zu lang|zu ausführlich|kürzer|kurz fassen|fass dich kurz|knapper|weniger text
    """,
    "too_short": """
        too short|too brief|longer|more detail|more details|in detail|more detailed|elaborate
        in depth|more depth|more thorough|explain more|say more|tell me more
        zu kurz|zu knapp|länger|ausführlicher|ausführlich|mehr details|genauer erklären
    """,
    "no_lists": """
        no list|no lists|no bullets|no bullet points|no headings|no bold|without lists|without a list
        without bullets|without bullet points|not a list|not as a list|not use lists|not use bullets
        not use bullet points|don't use lists|don't use bullets|don't use bullet points
        in prose|plain prose|full sentences|keine liste|keine listen|ohne liste|ohne listen
        keine aufzählung|keine aufzählungen|ohne aufzählung|im fließtext|als fließtext
    """,
    "use_lists": """
        as a list|a list|use lists|make a list|in a list|bullets|bullet points|bulleted list
        numbered list|numbered steps|step by step list|als liste|eine liste|als aufzählung|in stichpunkten
    """,
    "too_formal": """
        too formal|too stiff|less formal|more casual|casual tone|casually|be casual|informal
        friendlier|like a friend|zu förmlich|zu steif|lockerer|weniger förmlich
    """,
    "too_casual": """
        too casual|too informal|more formal|formal tone|formally|be formal|less casual|professional tone
        more professional|no contractions|zu locker|zu salopp|förmlicher|formeller
    """,
}


def set_phrases(apps: Any, schema_editor: Any) -> None:
    reason = apps.get_model("clawweb", "FeedbackReason")
    for slug, text in PHRASES.items():
        phrases = [part.strip() for line in text.splitlines() for part in line.split("|")]
        row = reason.objects.filter(slug=slug, phrases="")
        row.update(phrases="\n".join(phrase for phrase in phrases if phrase))


class Migration(migrations.Migration):
    dependencies = [("clawweb", "0013_training_policy")]
    operations = [
        migrations.AddField(
            model_name="feedbackreason",
            name="phrases",
            field=models.TextField(
                blank=True,
                help_text="Ways of saying it, one a line: a comment that has one contradicts other"
                " poles.",
            ),
            preserve_default=False,
        ),
        migrations.RunPython(set_phrases, migrations.RunPython.noop),
    ]
