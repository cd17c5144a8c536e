"""Dims stored otherwise than the user knows them: as blocks, or padded.

In: a graph and its links between dims. Out: which dims to view or pad, and what padding must hold.
"""
