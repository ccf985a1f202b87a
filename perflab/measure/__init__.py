"""Measures one callable in one process: clocks, warm-up and stopping, peak memory, counts, statistics. No pytest.

Sampling and statistics are plain Python; torch is loaded when something is measured.
"""
