"""Mixed precision: select precisions of single operators by measured errors and times."""
