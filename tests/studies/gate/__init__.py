"""The gate tried on unchanged and slowed code: false alarms, power and cost, beside pytest-benchmark's rule."""
