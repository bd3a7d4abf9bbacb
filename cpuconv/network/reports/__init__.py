"""Reports on a network: layouts and algorithms (`explain`), and times (`profile`, from the `timing` of operators)."""
