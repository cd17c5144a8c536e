"""Shardings on a module: what the user asks, what the search chooses, the program of one device.

In: a normalized module. Out: `sdy.sharding` attributes, or a localized module.
"""
