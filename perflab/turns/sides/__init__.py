"""The processes of a comparison's two sides: how they start, what they are sent, and what they answer."""
