"""Mamba's selective scan, several ways behind one call, and the mixer that is made of it.

Shapes: x, dt, z, y (B, T, E); a (E, N); b, c (B, T, N); d (E,); state (B, E, N); starts (B, T) of bool.

    h_t = exp(dt_t a) h_{t-1} + dt_t b_t x_t        y_t = (c_t h_t + d x_t) silu(z_t)

    from perflab.lab.scan import selective_scan
    y, state = selective_scan(x, dt, a, b, c, d, z=z, form="triton")

Triton is imported when that form is first asked for, and not before.
"""

from perflab.lab.scan.scan import FORMS, selective_scan

__all__ = ["FORMS", "selective_scan"]
