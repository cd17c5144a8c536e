"""A batch in parts: which dims are the batch, what each part does alone, where sums are accumulated.

In: a graph. Out: the ops before, in and behind the loop over micro-batches.
"""
