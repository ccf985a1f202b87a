"""More computation at test time: a task with checkable answers, and ways to search for one with a language model."""
