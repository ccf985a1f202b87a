"""How predicted cases run in pytest: fake tensors around set-up, body and teardown."""
