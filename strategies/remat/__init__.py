"""Rematerialization: what the forward pass stores for the backward pass, and what is computed a second time.

In: a graph and a share. Out: the ops to repeat.
"""
