"""Results of a network on the command line: a summary of each output, and files."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from baselib.files import write_whole
from baselib.screen import Column, Table

_FIGURES = ("min", "mean", "max")


def summaries(results: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return name, shape, dtype, and the minimum, mean and maximum of each array, as JSON types.

    The figures of an empty array are None; those that are not finite are text: "nan", "inf", "-inf".
    """
    return [
        {"name": name, "shape": list(array.shape), "dtype": array.dtype.name, **_figures(array)}
        for name, array in results.items()
    ]


def _figures(array: np.ndarray) -> dict[str, float | str | None]:
    if not array.size:
        return dict.fromkeys(_FIGURES)
    wide = array.astype(np.float64)
    figures = [float(figure) for figure in (wide.min(), wide.mean(), wide.max())]
    return {
        name: figure if math.isfinite(figure) else str(figure) for name, figure in zip(_FIGURES, figures, strict=True)
    }


def table(kind: str, arrays: list[dict[str, Any]]) -> Table:
    """Return a table of summaries of inputs or outputs, with all further fields."""
    rows = [[_text(field) for field in each.values()] for each in arrays]
    titles = [kind, *list(arrays[0])[1:]] if arrays else [kind]
    return Table(
        [Column(title, least=8 if title in (kind, "from") else None, keeps_end=True) for title in titles], rows
    )


def _text(field: str | float | list[int] | None) -> str:
    if isinstance(field, list):
        return "x".join(map(str, field))
    return f"{field:.6g}" if isinstance(field, float) else field or ""


def save(results: Mapping[str, np.ndarray], folder: Path) -> dict[str, Path]:
    """Write each array to a file of its name, all of them or none; return the files.

    Characters that are not allowed in file names are written as in a URL.

    Raises
    ------
    OSError
        A file cannot be written; then none is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{quote(name, safe=' ')}.npy" for name in results}
    write_whole({files[name]: _npy(array) for name, array in results.items()})
    return files


def _npy(array: np.ndarray) -> bytes:
    """Return the array in NumPy's file format."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()
