"""Several processes that run one step: how they start, meet and send arrays.

In: a step and addresses. Out: a team.
"""
