"""Bounds by prices, on edges and on memory, and the choices near them.

In: a problem on which elimination is too wide, or whose best choice does not fit. Out: a bound and a choice.
"""
