"""Attribution of memory: tensors that a callable holds, and the place in the code where a block was made."""
