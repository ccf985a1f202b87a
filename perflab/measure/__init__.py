"""Taking a number: clocks, warm-up and stopping, memory peaks, statistics. Knows torch, and nothing of pytest.

The rooms that sample and summarise are plain Python; only ``devices``, ``memory``, ``counts``, ``held`` and
``yardstick`` load torch, and only when they are called.
"""
