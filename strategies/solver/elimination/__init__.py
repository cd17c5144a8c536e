"""Exact elimination: node by node, and alike nodes in batches.

In: a problem. Out: what is left of it, and the best states of all that was removed.
"""
