"""The cut in stages: an integer program on the graph, forward and backward together.

In: work, bytes and edges of ops. Out: a stage for each op, with a bound.
"""
