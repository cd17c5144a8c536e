"""Compile for devices that are not there: what the compiler of a cluster's platform makes of a module.

In: a module, a cluster and a mesh. Out: `rhino.ir.hlo.compiled.Compiled`. No device and no planner is needed.
"""
