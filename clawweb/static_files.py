"""Static files: plotly.js out of its Python package; hashed names for imported modules too."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.finders import BaseFinder
from django.contrib.staticfiles.storage import ManifestStaticFilesStorage
from django.core.checks import CheckMessage
from django.core.files.storage import FileSystemStorage, Storage

PLOTLY = "vendor/plotly/plotly.min.js"


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
    """Our modules import each other by hashed name: no browser mixes old and new ones."""

    patterns = (
        *ManifestStaticFilesStorage.patterns,
        # Django's own switch for this covers every *.js, and trips over files of other packages.
        (
            "js/*.js",
            ManifestStaticFilesStorage._js_module_import_aggregation_patterns[1],
        ),
    )
