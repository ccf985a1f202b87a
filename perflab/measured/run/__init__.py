"""How measured cases run in pytest: measuring, re-checking suspects, saving."""
