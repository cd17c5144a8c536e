"""How tests draw the steps of random programs (bench/random_programs.py)."""

from hypothesis import strategies as st
from random_programs import OPS

NUMBERS = st.integers(0, (1 << 16) - 1)
STEPS = st.lists(st.tuples(st.integers(0, len(OPS) - 1), NUMBERS, NUMBERS, NUMBERS), min_size=4, max_size=10)
