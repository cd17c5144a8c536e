"""What a program is made of: dependences, critical path, cones, segments, layers, axes and their roles.

In: a graph. Out: numbers on its ops.
"""
