"""Numbers into parts of nearly equal sum: the arithmetic under sequence balancing."""
