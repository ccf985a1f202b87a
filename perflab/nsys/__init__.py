"""Nsight Systems: runs ``nsys profile`` and reads its SQLite export, of several versions and without nsys."""
