"""Tensors stored otherwise: padded, or viewed as blocks.

In: a normalized module. Out: the same step on other shapes.
"""
