"""Mixture of experts: many feed-forwards in a layer, of which each token passes through a few.

n tokens, d model width, E experts, k experts a token, s shared experts, F width of one expert, C capacity of one.

    z = W_r x                                  (n, E) the router's logits
    p, chosen, g                               probabilities, k experts of each token, and their weights (`router.py`)
    y = sum over i in chosen(x) of  g_i W_down,i (silu(W_gate,i x) * W_up,i x)       (Shazeer et al. 2017, equation 1)
      + sum over the shared experts of the same, without weights                (Dai et al. 2024, equation 9)

    F = d_ff / (k + s): what a token passes through is as wide as the model's `d_ff`, however many experts there are

so more experts are more parameters, and no more operations a token but the router's. Two losses keep the experts
equally busy and the logits small; they are means over the layers, and `TrainingStep` adds them (`router.py`).

With a capacity an expert takes C = ceil(factor n k / E) tokens, those first in the batch, and leaves out the others,
whose share of y is zero (Fedus et al. 2021, section 2.2). In training alone: else what a token gets would depend on
its neighbours in the batch, and an answer on who asks beside.

config.py          the settings of a mixture
router.py          which experts a token goes to, with which weights, and both losses
products.py        x @ W[expert of the row], rows in order of their experts: a loop, PyTorch's own, Triton's
triton_grouped.py  that product and its gradients in Triton
mixture.py         the layer
examples.py        the kernels' launches, for whoever compiles ahead of time
"""
