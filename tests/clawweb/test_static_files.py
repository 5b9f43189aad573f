"""Static files as they are collected and served: packed once, kept for good by browsers."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest
from django.core.files.storage import FileSystemStorage

from clawweb.asgi import HashedFiles
from clawweb.static_files import HashedStorage

SCRIPT = "export const words = 'many many many words';\n" * 40


@pytest.fixture
def served(tmp_path: Path) -> tuple[Path, str]:
    """A collected folder, and the hashed name of the one script in it."""
    source, root = tmp_path / "source", tmp_path / "root"
    for folder in (source, root):
        (folder / "js").mkdir(parents=True)
        (folder / "js" / "a.js").write_text(SCRIPT)
    storage = HashedStorage(location=root, base_url="/static/")
    paths = {"js/a.js": (FileSystemStorage(location=source), "js/a.js")}
    list(storage.post_process(paths))
    return root, storage.stored_name("js/a.js")


async def fetch(root: Path, name: str, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(HashedFiles(directory=root))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return await client.get(f"/{name}", headers=headers)


def test_a_hashed_script_is_packed_once(served):
    root, name = served
    assert gzip.decompress((root / f"{name}.gz").read_bytes()).decode() == SCRIPT
    assert not (root / "js/a.js.gz").exists()
    HashedStorage(location=root)._pack(name)
    assert sorted(path.name for path in (root / "js").iterdir()) == sorted(
        ["a.js", Path(name).name, f"{Path(name).name}.gz"]
    )


async def test_who_takes_gzip_gets_it_and_keeps_it_for_good(served):
    root, name = served
    answer = await fetch(root, name, **{"Accept-Encoding": "br, gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["vary"] == "Accept-Encoding"
    assert "immutable" in answer.headers["cache-control"]
    assert int(answer.headers["content-length"]) < len(SCRIPT) / 4
    assert answer.text == SCRIPT
    again = await fetch(
        root, name, **{"Accept-Encoding": "gzip", "If-None-Match": answer.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert "content-encoding" not in again.headers


@pytest.mark.parametrize("accepted", ["identity", "gzip;q=0", "br, gzip; q=0.0", ""])
async def test_who_does_not_take_gzip_gets_it_plain(served, accepted):
    root, name = served
    answer = await fetch(root, name, **{"Accept-Encoding": accepted})
    assert "content-encoding" not in answer.headers
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.text == SCRIPT


async def test_a_name_without_a_hash_is_not_kept_for_good(served):
    root, _ = served
    answer = await fetch(root, "js/a.js", **{"Accept-Encoding": "gzip"})
    assert "cache-control" not in answer.headers
    assert answer.text == SCRIPT
