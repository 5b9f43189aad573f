"""Reasons know how people say them in words of their own."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

PHRASES = {  # of a shipped reason as it was shipped: slug, axis, pole
    ("too_long", "length", "short"): """
        too long|too wordy|too verbose|too much text|too much detail|too detailed|too many words
        shorter|briefer|brief|more brief|short|short answer|in short
        briefly|concise|more concise|to the point|fewer words|less words
        less text|less detail|fewer details|less detailed|in one sentence|in two sentences
        in one or two sentences|one sentence|zu lang|zu ausführlich|zu viel text|kürzer|kurz
        kurz fassen|fass dich kurz|fasse dich kurz|knapper|weniger text|weniger ausführlich
    """,
    ("too_short", "length", "long"): """
        too short|too brief|too concise|not detailed enough|not enough detail|longer|much longer
        more detail|more details|in detail|in more detail|detailed|more detailed|elaborate|in depth
        more depth|more thorough|explain more|say more|more text
        zu kurz|zu knapp|länger|ausführlicher|ausführlich|mehr details|mehr text|genauer
    """,
    ("no_lists", "layout", "prose"): """
        no list|no lists|no bullets|no bullet points|no headings|no bold|without lists
        without bullets|without bullet points|not as a list|do not use lists|do not use bullets
        do not use bullet points|don't use lists|don't use bullets|don't use bullet points
        avoid lists|avoid bullets|avoid bullet points|stop using lists|stop using bullet points
        prose|in prose|plain prose|in plain prose|full sentences|in full sentences
        keine liste|keine listen|ohne liste|ohne listen|keine aufzählung|keine aufzählungen
        ohne aufzählung|im fließtext|als fließtext
    """,
    ("use_lists", "layout", "list"): """
        as a list|use a list|use lists|should be a list|should be bullet points
        use bullets|use bullet points|as bullet points|in bullet points
        as a bulleted list|as a numbered list|use a numbered list|in numbered steps
        als liste|als aufzählung|in stichpunkten
    """,
    ("too_formal", "tone", "casual"): """
        too formal|too stiff|less formal|less stiff|more casual|casual|in a casual tone|casual tone
        more relaxed|like a friend|zu förmlich|zu steif|lockerer|weniger förmlich
    """,
    ("too_casual", "tone", "formal"): """
        too casual|too informal|more formal|formal|in a formal tone|formal tone|less casual
        more professional|in a professional tone|no contractions|zu salopp|förmlicher|formeller
    """,
}


def set_phrases(apps: Any, schema_editor: Any) -> None:
    reason = apps.get_model("clawweb", "FeedbackReason")
    for (slug, axis, pole), text in PHRASES.items():
        phrases = [part.strip() for line in text.splitlines() for part in line.split("|")]
        rows = reason.objects.filter(slug=slug, axis=axis, pole=pole)  # as an admin left it
        rows.update(phrases="\n".join(phrase for phrase in phrases if phrase))


class Migration(migrations.Migration):
    dependencies = [("clawweb", "0013_training_policy")]
    operations = [
        migrations.AddField(
            model_name="feedbackreason",
            name="phrases",
            field=models.TextField(
                blank=True,
                help_text="Ways of saying it, one a line: a comment that says one contradicts other"
                " poles.",
            ),
            preserve_default=False,
        ),
        migrations.RunPython(set_phrases, migrations.RunPython.noop),
    ]
