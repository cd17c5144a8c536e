"""One file a pass: read IR, decide with a strategy, write IR."""
