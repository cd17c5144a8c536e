"""Solvers of the choice problem: one state for each node, at the least cost, within a budget of memory.

In: a `Problem` of plain tables. Out: an `Answer` with a proven bound, or a proof that there is none.
"""
