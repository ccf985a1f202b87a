"""The gated linear recurrence: one operator behind retention, gated linear attention, Mamba-2 and RWKV-6.

linear_recurrence(q, k, v, log_decay, form="chunked") -> out, final state
"""

from perflab.lab.recurrence.recurrence import FORMS, linear_recurrence

__all__ = ["FORMS", "linear_recurrence"]
