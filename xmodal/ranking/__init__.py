"""Rankings: how near answers are, which of them are right, and at which ranks these stand. Without torch."""
