"""The gate measured by itself: how often it cries wolf, what it finds, and what it costs, on this machine."""
