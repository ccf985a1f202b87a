"""Retrieval: passages of a text that are near a question, found by vectors, in the prompt of a language model."""
