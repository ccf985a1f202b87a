"""Predictions as text: table, detail, failure. Pure."""
