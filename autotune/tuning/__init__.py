"""Many problems tuned: searched, tried out in workers, timed, in one process or on many machines."""
