"""What tests share: operands, oracles, described machines and small models; rooms for the rest."""
