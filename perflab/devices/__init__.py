"""The devices that PyTorch computes on: one file for each kind, and one face of all for the rest of perflab."""
