"""What happens around all cases: start, order, collected results, files left behind."""
