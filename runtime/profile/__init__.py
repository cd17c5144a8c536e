"""Measure the devices at hand.

In: devices. Out: a cluster description with sources.
"""
