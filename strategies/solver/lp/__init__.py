"""Linear and integer programs: the local polytope, small programs over what a search has found, fixing of variables.

In: sparse rows. Out: a point with a bound.
"""
