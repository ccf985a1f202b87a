"""Measured cases as text: columns of tables, failures, quantities that were not compared. Pure."""
