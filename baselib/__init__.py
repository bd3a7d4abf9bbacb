"""Extensions of Python's standard library that all packages use: classes, locks, files, processes, text."""
