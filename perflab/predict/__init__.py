"""What a case needs on a GPU that is not here: it runs on fake tensors, and what it did is counted."""
