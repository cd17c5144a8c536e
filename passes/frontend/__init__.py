"""From a module as front ends write it to the form that the planner reads.

In: any StableHLO. Out: one function, nothing dead, nothing twice.
"""
