"""Files that installed packages carry: model weights, pictures, a recording. The packages are not imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from polymux.demo.failure import DemoFailed

__all__ = ["files_of", "package_file"]


def package_file(package: str, path: str) -> Path:
    """Return the place of a file of an installed package.

    Parameters
    ----------
    package : str
        Name of the package in the registry, such as ``"silero-vad"``.
    path : str
        The file's path as the package lists it, such as ``"silero_vad/data/silero_vad.onnx"``.

    Raises
    ------
    DemoFailed
        When the package is not installed or does not have the file.
    """
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        raise DemoFailed(
            f"the package {package} is not installed, and the demo uses its file {path}; install it, without what it"
            f" depends on: pip install --no-deps {package}"
        ) from None
    place = Path(str(installed.locate_file(path)))
    if not place.is_file():
        raise DemoFailed(
            f"version {installed.version} of the package {package} has no file {path}; install the version that"
            " requirements.lock names"
        )
    return place


def files_of(package: str, suffix: str) -> list[Path]:
    """Return all files of a package whose names end with a suffix, sorted; none when it is not installed."""
    try:
        listed = distribution(package).files or []
    except PackageNotFoundError:
        return []
    places = (Path(str(file.locate())) for file in sorted(listed, key=str) if file.name.endswith(suffix))
    return [place for place in places if place.is_file()]
