"""All that is MLIR and not yet a program of ours: the bindings, reading modules, shardings, regions.

In: bytes. Out: verified modules, and modules that stock XLA takes.
"""
