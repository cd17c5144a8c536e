"""Plans as data: what is sharded how, the instructions of a step in stages, and the files that keep both.

In: what a search has decided. Out: files, and plans read from them, compared, and in words.
"""
