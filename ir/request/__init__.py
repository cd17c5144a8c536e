"""What a user asks of tensors, axes and custom calls, parsed.

In: texts and TOML files. Out: constraints and rules as values.
"""
