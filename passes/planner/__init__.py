"""Plans from modules: shardings, stages and the search over both, with reasons. No pass imports it.

In: a module and what is asked. Out: a plan, and what others lose by.
"""
