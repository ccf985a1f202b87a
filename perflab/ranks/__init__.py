"""Functions in several processes at once, which are the ranks of one process group of ``torch.distributed``."""
