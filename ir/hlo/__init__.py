"""What XLA compiled: its HLO text as instructions, the collectives and the kernels in them.

In: the text of a compiled module. Out: instructions by computation, collectives with their groups, kernels with their
FLOP and bytes. Nothing is predicted here.
"""
