"""One call as a trace: operators and blocks of memory, with the module and line behind each."""
