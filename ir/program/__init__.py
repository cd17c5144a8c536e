"""What a module says, read into plain data, and the attributes that speak of it.

In: a normalized module. Out: `Program`, with its graph.
"""
