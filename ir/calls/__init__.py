"""Custom calls that show how they split, by what is in them: kernels for TPUs and GPUs, and cuDNN's attention.

In: a custom call. Out: its sharding rule and its work, and the call for a part of its operands.
"""
