"""HTML pages: one file each, that opens from a disk, a CI artifact or an e-mail, and loads nothing from anywhere."""
