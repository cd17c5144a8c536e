"""Passes that only write what they find: work, candidates, critical path, cones, segments.

In: a normalized module. Out: `rhino.*` attributes.
"""
