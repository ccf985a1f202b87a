"""Traces of models with many layers, from traces of few layers."""
