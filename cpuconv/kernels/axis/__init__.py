"""Work along one axis of plain memory: softmax, sums, normalisation."""
