"""Attention over long sequences: products of queries and keys that no memory holds at once.

In: a normalized module. Out: the same step with loops over blocks of keys.
"""
