"""Names of accounts that were made as they were typed, as the sign-in form reads names."""

import unicodedata

from django.db import migrations


def normalise(apps, schema_editor):
    users = apps.get_model("clawweb", "User").objects
    for pk, name in users.values_list("pk", "username"):
        read = unicodedata.normalize("NFKC", name).strip()
        if read == name or not read or len(read) > 150:
            continue
        if not users.filter(username__iexact=read).exclude(pk=pk).exists():  # else an admin renames
            users.filter(pk=pk).update(username=read)


class Migration(migrations.Migration):

    dependencies = [
        ('clawweb', '0019_when_no_hint_teaches'),
    ]

    operations = [
        migrations.RunPython(normalise, migrations.RunPython.noop),
    ]
