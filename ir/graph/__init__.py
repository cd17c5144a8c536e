"""The program as dense arrays, and tables about single ops: rules, specs, elements, what collectives count.

In: names, shapes and rule texts. Out: `Graph`, `Rule`, `Spec`, which the planner reads and no binding of MLIR is needed
for.
"""
