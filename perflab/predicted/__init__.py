"""The predicted tier: cases are traced on fake tensors, so no GPU is needed to predict their cost on one."""
