"""What was found, as files; and which of pinned file, store and shipped table decides."""
