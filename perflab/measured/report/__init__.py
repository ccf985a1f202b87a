"""Measured cases as text: columns of tables, failures, what was not compared. Pure."""
