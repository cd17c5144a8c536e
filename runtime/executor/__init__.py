"""Compile and run: a program, or a list of instructions on several ranks, proven before it starts.

In: modules and a step. Out: results, traces, comparisons.
"""
