"""Exact elimination: node by node, alike nodes in batches, alike layers as one.

In: a problem. Out: what is left of it, and the best states of all that was removed.
"""
