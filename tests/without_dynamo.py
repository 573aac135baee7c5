"""A rank in Python that imports this after torch has none of torch.compile's front end, torch._dynamo. DistributedDataParallel and each
optimizer import it to tell it that they are not compiled, which costs as much processor time as all the rest of a start."""

import sys
import types

import torch

assert "torch._dynamo" not in sys.modules, "import without_dynamo right after torch"
dynamo = types.ModuleType("torch._dynamo")
dynamo.disable = lambda function, *_, **__: function
dynamo.graph_break = lambda: None
dynamo.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization")
dynamo.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
sys.modules["torch._dynamo"] = torch._dynamo = dynamo
