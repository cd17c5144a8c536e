"""A step in micro-batches and stages: the loop, rematerialization, the cut, one program for each stage.

In: a normalized module. Out: a module in stages.
"""
