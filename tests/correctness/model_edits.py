"""Changes of ``small_models.py``, each of a line or two, and what the cause of its failure has to name first."""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """One line of the file, ``was``, replaced, and what has to be named."""

    kind: str
    """Of the model whose training step it changes."""
    name: str
    was: str
    now: str
    operators: str
    """Any of these, without ``aten::``."""
    phases: str = "forward backward"
    """Any of these."""
    at: str = ""
    """The line that runs otherwise, where the edit is in what makes a module; otherwise those of the edit."""


EDITS = (
    Edit("convolution", "an extra cast", "x = self.blocks(x)", "x = self.blocks(x.double().float())",
         "to _to_copy copy_"),
    Edit("convolution", "an extra copy", "x = self.stem(images)", "x = self.stem(images.clone())", "clone", "forward"),
    Edit("convolution", "a lost in-place", "y = F.relu(y, inplace=True)", "y = F.relu(y)", "relu"),
    Edit("convolution", "a larger width", "self.blocks = nn.Sequential(Residual(16), Residual(16))",
         "self.blocks = nn.Sequential(Residual(16), Residual(16), Residual(16))", "blocks.*",
         "", at="x = self.blocks(x)"),
    Edit("convolution", "an operator written out", "return F.relu(x + y)", "return (x + y) * (x + y > 0)",
         "add mul gt relu"),
    Edit("convolution", "a kept tensor", "said = self.model(*self.inputs)",
         "said = self.model(*self.inputs)\n        HISTORY.append(said)", "", "kept"),
    Edit("recurrent", "a function written out", "return self.tags(F.gelu(hidden)).transpose(1, 2)",
         "return self.tags(0.5 * hidden * (1 + torch.erf(hidden * 0.7071))).transpose(1, 2)", "mul erf gelu"),
    Edit("recurrent", "computed twice", "hidden, _ = self.gru(x)", "self.gru(x)\n        hidden, _ = self.gru(x)",
         "gru"),
    Edit("recurrent", "a norm written out", "hidden = self.norm(hidden)",
         "hidden = (hidden - hidden.mean(-1, True)) / hidden.var(-1, keepdim=True).sqrt()",
         "var mean sub div layer_norm sqrt", "temporaries activations"),
    Edit("recurrent", "a leak", "loss.backward()", "loss.backward(retain_graph=True)\n        HISTORY.append(loss)",
         "", "kept"),
    Edit("recurrent", "clipping", "self.optimizer.step()",
         "nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)\n        self.optimizer.step()",
         "linalg_vector_norm _foreach_norm _foreach_mul_ mul_ stack clamp", ""),
    Edit("recurrent", "a larger width", "self.words = nn.Embedding(500, 32)",
         "self.words = nn.Embedding(1000, 32)", "", "state gradients", at="x = self.words(words)"),
    Edit("graph", "a scatter by a product", "got = torch.zeros_like(nodes).index_add_(0, edges[1], sent)",
         "got = F.one_hot(edges[1], len(nodes)).float().T @ sent", "one_hot matmul mm scatter_ to"),
    Edit("graph", "a loop over edges", "sent = self.others(nodes)[edges[0]]",
         "sent = torch.cat([self.others(nodes)[part] for part in edges[0].chunk(3)])", "cat linear mm index"),
    Edit("graph", "a checkpoint", "nodes = layer(nodes, edges)",
         "nodes = torch.utils.checkpoint.checkpoint(layer, nodes, edges, use_reentrant=False)", "", "backward"),
    Edit("graph", "a read of a value", "return F.silu(out)",
         "assert out.isfinite().all().item()\n        return F.silu(out)",
         "isfinite all item eq abs", "forward"),
    Edit("graph", "a deeper model", "self.layers = nn.ModuleList(Messages(32) for _ in range(3))",
         "self.layers = nn.ModuleList(Messages(32) for _ in range(4))", "layers.*",
         "", at="nodes = layer(nodes, edges)"),
    Edit("graph", "two backwards", "loss.backward()", "loss.backward(retain_graph=True)\n        loss.backward()",
         "", "backward"),
    Edit("diffusion", "a cast", "x = x + F.interpolate(low, scale_factor=2.0)",
         "x = x + F.interpolate(low.double(), scale_factor=2.0).float()",
         "to _to_copy copy_ upsample_nearest2d upsample_nearest2d_backward"),
    Edit("diffusion", "a layout", "x = self.enter(noisy) + shift[:, :, None, None]",
         "x = self.enter(noisy).contiguous(memory_format=torch.channels_last) + shift[:, :, None, None]",
         "contiguous clone copy_"),
    Edit("diffusion", "a broadcast written out", "x = self.enter(noisy) + shift[:, :, None, None]",
         "x = self.enter(noisy) + shift[:, :, None, None].repeat(1, 1, 16, 16)", "repeat copy_ clone"),
    Edit("diffusion", "a hook's gradients kept", "low = self.down(F.silu(self.norm(x)))",
         "low = self.down(F.silu(self.norm(x)))\n"
         "        low.register_hook(self.__dict__.setdefault('seen', []).append)", "", "kept"),
    Edit("diffusion", "a second forward for logging", "self.optimizer.step()",
         "self.optimizer.step()\n        self.error = self.forward().detach()", "conv2d convolution", "optimizer"),
    Edit("diffusion", "a larger width", "self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))",
         "self.time = nn.Sequential(nn.Linear(16, 512), nn.SiLU(), nn.Linear(512, 32))", "",
         "", at="shift = self.time("),
    Edit("recommender", "a bag written out", 'before = F.embedding_bag(bought, self.items.weight, mode="mean")',
         "before = self.items(bought).mean(1)", "embedding mean embedding_bag embedding_dense_backward"),
    Edit("recommender", "a loop that replaces the optimizer", "self.optimizer.step()",
         "with torch.no_grad():\n            for one in self.model.parameters():\n"
         "                one -= 1e-3 * one.grad", "mul sub_", "optimizer"),
    Edit("recommender", "a copy", "both = torch.cat((user, item, before), 1)",
         "both = torch.cat((user, item, before), 1).clone()", "clone", "forward"),
    Edit("recommender", "a penalty", "return self.loss_of(said, self.wanted)",
         "return self.loss_of(said, self.wanted) + 1e-4 * sum(one.square().sum() for one in self.model.parameters())",
         "pow square sum mul"),
    Edit("recommender", "more backward work", "loss.backward()",
         "loss.backward()\n        self.size = [one.grad.norm() for one in self.model.parameters()]",
         "linalg_vector_norm norm", "backward"),
    Edit("recommender", "a softmax for the loss", "return self.tower(both).squeeze(1)",
         "return self.tower(both).squeeze(1).clamp(-9, 9)", "clamp clamp_backward ge le"),
)  # fmt: skip
