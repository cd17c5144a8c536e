"""A step on several ranks: the order of its instructions, its time and memory before it runs.

In: stages and a schedule. Out: a `Step`, simulated.
"""
