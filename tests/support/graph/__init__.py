"""What tests of networks share: cases of every operator, graphs written as expressions, random and damaged models."""
