"""What things cost, in seconds: ops by what they can be split into, tensors by how they are moved.

In: classes of ops, specs, a cluster. Out: strategies, and their seconds.
"""
