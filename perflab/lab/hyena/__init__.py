"""Hyena: long convolutions with implicit filters, and gates between them, as a mixer of the lab's model."""
