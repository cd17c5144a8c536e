"""What a plan keeps in the memory of a device: rows for the search, and the peak of the chosen program.

In: a graph with states or a plan. Out: residents and bytes over time.
"""
