"""Pictures in files, read by Pillow."""

from __future__ import annotations

import os
from typing import Any

from cpuconv.errors import ArgumentError, must


def picture_in(path: str | os.PathLike[str], argument: str) -> Any:
    """Read a picture of 8 bits from a file.

    Raises
    ------
    ArgumentError
        Pillow is missing, or the file is no picture. The message names `argument`.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ArgumentError(
            must(argument, "arrays where Pillow is missing (pip install 'cpuconv[images]')", "images")
        ) from error
    try:
        with Image.open(path) as file:
            file.load()
            return file
    except Exception as error:  # Pillow raises many types for files that are not images
        raise ArgumentError(must(argument, "images that can be read", f"{os.fspath(path)} ({error})")) from error
