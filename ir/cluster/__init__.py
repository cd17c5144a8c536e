"""Clusters and meshes: devices, the levels that join them, and where every number comes from.

In: a preset's name or a cluster file. Out: `Cluster`, and a `Mesh` placed on it.
"""
