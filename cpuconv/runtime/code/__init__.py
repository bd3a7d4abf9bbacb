"""Machine code: lookup, compilation, caches on disk and in memory; `sources` identifies the sources it depends on."""
