"""The choice problem of a graph, and a choice spelled out as a plan.

In: a problem and the states of its nodes. Out: how every op runs, how every value lies, what is sent.
"""
