"""Rhino, an automatic parallelizer for tensor programs: StableHLO in, Shardy shardings chosen by search out."""
