"""What became of a network (`explain`), and where its time goes (`profile`, from the `timing` of its operators)."""
