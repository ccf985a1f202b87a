"""The predicted tier: a case is traced on fake tensors, and nothing runs on the GPU it is predicted for."""
