"""Makes HTML pages: each is one file that opens from a disk, a CI artifact or an e-mail, and loads nothing else."""
