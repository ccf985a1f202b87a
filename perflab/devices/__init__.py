"""The device layer: what perflab asks of the devices that PyTorch computes on, with a file for each kind."""
