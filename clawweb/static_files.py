"""Static files: plotly.js out of its Python package; hashed names for imported modules too, and
each one's gzip beside it, made once."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.contrib.staticfiles.storage import ManifestStaticFilesStorage
from django.core.checks import CheckMessage
from django.core.files.storage import FileSystemStorage, Storage

PLOTLY = "vendor/plotly/plotly.min.js"
TEXTS = (".css", ".js", ".json", ".svg")


class PlotlyFinder(BaseFinder):
    """The one file of the plotly package that pages load. The package itself is not imported."""

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return []

    def find(self, path: str, find_all: bool = False, **kwargs: Any) -> Any:
        file = str(_package_data() / "plotly.min.js")
        if path != PLOTLY:
            return []
        return [file] if find_all else file

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterable[tuple[str, Storage]]:
        storage = FileSystemStorage(location=_package_data())
        storage.prefix = "vendor/plotly"  # type: ignore[attr-defined]  # how collectstatic places it
        yield "plotly.min.js", storage


def _package_data() -> Path:
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:  # pragma: no cover  # requirements name it
        raise FileNotFoundError("the plotly package is not installed; run `make install`")
    return Path(spec.origin).parent / "package_data"


class HashedStorage(ManifestStaticFilesStorage):
    """Our modules import each other by hashed name: no browser mixes old and new ones. Texts of
    such a name are also there as `NAME.gz`, for whoever serves them."""

    patterns = (
        *ManifestStaticFilesStorage.patterns,
        # Django's own switch for this covers every *.js, and trips over files of other packages.
        (
            "js/*.js",
            ManifestStaticFilesStorage._js_module_import_aggregation_patterns[1],
        ),
    )

    def post_process(self, *args: Any, **options: Any) -> Iterator[Any]:
        for original, processed, outcome in super().post_process(*args, **options):
            yield original, processed, outcome
            if isinstance(processed, str) and processed != original and processed.endswith(TEXTS):
                self._pack(processed)

    def _pack(self, name: str) -> None:
        """A hashed name's content never changes: what is packed already stays."""
        packed = Path(self.path(f"{name}.gz"))
        if packed.exists():
            return
        partial = packed.with_name(f"{packed.name}.partial")
        # No time in it: the same content is the same file.
        partial.write_bytes(gzip.compress(Path(self.path(name)).read_bytes(), 9, mtime=0))
        partial.rename(packed)  # a server that runs meanwhile sees all of it or nothing
