"""Bisection: finds the commit of a range that changed a case's quantity, by halving and paired comparisons."""
