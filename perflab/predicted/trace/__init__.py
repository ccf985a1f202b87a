"""One call as a trace: operators and blocks of memory, each with its module and line; of many layers, from a few."""
