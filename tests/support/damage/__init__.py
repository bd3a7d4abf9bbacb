"""Files with something wrong in them, made for the readers of models, saved models, wisdom and problems."""
