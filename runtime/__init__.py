"""Compile and run modules on the devices at hand; imports neither passes nor strategies."""
