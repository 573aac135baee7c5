"""A BERT with random weights, as transformers saves one, written without transformers, whose import takes seconds."""

import json

import numpy

# The heads by class: {name: shape by (hidden, labels)}.
HEADS = {
    "BertModel": {},
    "BertForSequenceClassification": {"classifier": ("labels", "hidden")},
    "BertForTokenClassification": {"classifier": ("labels", "hidden")},
    "BertForQuestionAnswering": {"qa_outputs": (2, "hidden")},
}
WITHOUT_POOLER = ("BertForTokenClassification", "BertForQuestionAnswering")


def shapes(model_class, config):
    """{name: shape} of the parameters."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    found = {}

    def linear(name, outputs, inputs):
        found[f"{name}.weight"], found[f"{name}.bias"] = (outputs, inputs), (outputs,)

    def norm(name):
        found[f"{name}.weight"] = found[f"{name}.bias"] = (hidden,)

    for name, rows in (("word", config["vocab_size"]), ("position", config["max_position_embeddings"]), ("token_type", 2)):
        found[f"embeddings.{name}_embeddings.weight"] = (rows, hidden)
    norm("embeddings.LayerNorm")
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{name}", hidden, hidden)
        linear(f"{layer}.attention.output.dense", hidden, hidden)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", wide, hidden)
        linear(f"{layer}.output.dense", hidden, wide)
        norm(f"{layer}.output.LayerNorm")
    if model_class not in WITHOUT_POOLER:
        linear("pooler.dense", hidden, hidden)
    if model_class != "BertModel":
        found = {f"bert.{name}": shape for name, shape in found.items()}
    for name, shape in HEADS[model_class].items():
        sizes = {"hidden": hidden, "labels": len(config.get("id2label", {0: "", 1: ""}))}
        linear(name, *(sizes.get(size, size) for size in shape))
    return found


def write(directory, model_class, tokens, initializer_range=0.2, seed=0, **more):
    """Two layers, 64 positions; `more`: further entries of config.json."""
    config = {
        "architectures": [model_class],
        "model_type": "bert",
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": initializer_range,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        **more,
    }
    draw = numpy.random.Generator(numpy.random.PCG64(seed))
    header, data = {"__metadata__": {"format": "pt"}}, []
    end = 0
    for name, shape in shapes(model_class, config).items():
        if name.endswith("bias"):
            values = numpy.zeros(shape, numpy.float32)
        elif "LayerNorm" in name:
            values = numpy.ones(shape, numpy.float32)
        else:
            values = (draw.standard_normal(shape) * initializer_range).astype(numpy.float32)
        if name.endswith("word_embeddings.weight"):
            values[0] = 0  # of [PAD]
        data.append(values.tobytes())
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + len(data[-1])]}
        end += len(data[-1])
    directory.mkdir()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "vocab.txt").write_text("".join(token + "\n" for token in tokens))
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True}))
    return directory
