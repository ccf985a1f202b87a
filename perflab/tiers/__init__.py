"""The interface of a tier, and what is handed to its methods."""
