"""Operations along one axis of plain tensors: softmax, reductions, normalisation."""
