"""The search for shardings: from a graph to a choice problem, and to the best choice whose program fits.

In: a graph and a cost model. Out: the choice, and what others would add.
"""
