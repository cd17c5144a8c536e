"""A step in f32 as one that computes in 16 bits, with parameters, sums and updates in f32.

In: a normalized module. Out: the same step on other element types, with conversions between them.
"""
