"""The command-line tools: thin mains over passes and runtime."""
