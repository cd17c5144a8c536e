"""A better choice that fits out of two that were found: by components of their difference, or along a cut.

In: two choices. Out: one that follows each in parts.
"""
