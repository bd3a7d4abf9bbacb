"""Where things are kept between processes."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

VARIABLE = "CPUCONV_CACHE_DIR"


def cache_folder() -> Path:
    """The cache folder: the variable CPUCONV_CACHE_DIR, else the user's cache folder. It may not exist yet."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("cpuconv"))


def store_path() -> Path:
    """The store's file inside the cache folder."""
    return cache_folder() / "autotune.sqlite"
