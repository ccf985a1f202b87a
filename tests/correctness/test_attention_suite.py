"""The attention suite (perflab.attention), on the lab's variants or what --attention names."""

from perflab.attention.suite import *  # noqa: F403
