"""Mixed precision: which ops of a step compute in fewer bits, and which values are stored in them.

In: a graph in f32. Out: a type for each op and value, and the reasons by kind of op.
"""
