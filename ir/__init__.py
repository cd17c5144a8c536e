"""Modules in and out, the dense program graph, sharding rules and specs, meshes, clusters. The only door to jaxlib."""
