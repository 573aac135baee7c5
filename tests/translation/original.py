"""The translation transformer in Python, written from its published facts: the peer of ours in tests and benchmarks.

Norm before each block and at the end, a layer norm of its own (sample deviation, eps added to it), projections of the
attention without biases, -1e9 in the place of masked scores, sines and cosines as buffers, Xavier where there is a matrix.
"""

import math

import torch
from torch import nn

PAD, SOS, EOS = 1, 2, 3


class Norm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.alpha = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        deviation = x.std(dim=-1, keepdim=True)
        return self.alpha * (x - mean) / (deviation + self.eps) + self.bias


class Positions(nn.Module):
    def __init__(self, width, length, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(length, dtype=torch.float).unsqueeze(1)
        divisor = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        table = torch.zeros(1, length, width)
        table[0, :, 0::2] = torch.sin(position * divisor)
        table[0, :, 1::2] = torch.cos(position * divisor)
        self.register_buffer("pe", table)

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.shape[1]])


class Embed(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.scale = math.sqrt(width)
        self.embedding = nn.Embedding(rows, width)

    def forward(self, ids):
        return self.embedding(ids) * self.scale


class Feed(nn.Module):
    def __init__(self, width, inner, dropout):
        super().__init__()
        self.linear_1 = nn.Linear(width, inner)
        self.dropout = nn.Dropout(dropout)
        self.linear_2 = nn.Linear(inner, width)

    def forward(self, x):
        return self.linear_2(self.dropout(torch.relu(self.linear_1(x))))


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.w_q = nn.Linear(width, width, bias=False)
        self.w_k = nn.Linear(width, width, bias=False)
        self.w_v = nn.Linear(width, width, bias=False)
        self.w_o = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def mix(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        mixed = self.dropout(scores.softmax(dim=-1)) @ v
        return self.w_o(mixed.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1))

    def forward(self, q, k, v, mask):
        return self.mix(self.split(self.w_q(q)), self.split(self.w_k(k)), self.split(self.w_v(v)), mask)


class Residual(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.norm = Norm(width)

    def forward(self, x, block):
        return x + self.dropout(block(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self, width, heads, inner, dropout):
        super().__init__()
        self.self_attention_block = Attention(width, heads, dropout)
        self.feed_forward_block = Feed(width, inner, dropout)
        self.residual_connections = nn.ModuleList([Residual(width, dropout) for _ in range(2)])

    def forward(self, x, mask):
        x = self.residual_connections[0](x, lambda y: self.self_attention_block(y, y, y, mask))
        return self.residual_connections[1](x, self.feed_forward_block)


class DecoderLayer(nn.Module):
    def __init__(self, width, heads, inner, dropout):
        super().__init__()
        self.self_attention_block = Attention(width, heads, dropout)
        self.cross_attention_block = Attention(width, heads, dropout)
        self.feed_forward_block = Feed(width, inner, dropout)
        self.residual_connections = nn.ModuleList([Residual(width, dropout) for _ in range(3)])

    def forward(self, x, memory, source_mask, target_mask):
        x = self.residual_connections[0](x, lambda y: self.self_attention_block(y, y, y, target_mask))
        x = self.residual_connections[1](x, lambda y: self.cross_attention_block(y, memory, memory, source_mask))
        return self.residual_connections[2](x, self.feed_forward_block)


class Stack(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = Norm(width)

    def forward(self, x, *more):
        for layer in self.layers:
            x = layer(x, *more)
        return self.norm(x)


class Projection(nn.Module):
    def __init__(self, width, rows):
        super().__init__()
        self.proj = nn.Linear(width, rows)

    def forward(self, x):
        return self.proj(x)


class Transformer(nn.Module):
    def __init__(self, source_vocab_size, target_vocab_size, seq_len=350, d_model=512, num_layers=6, num_heads=8, d_ff=2048, dropout=0.1):
        super().__init__()
        self.encoder = Stack([EncoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)], d_model)
        self.decoder = Stack([DecoderLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)], d_model)
        self.src_embed = Embed(source_vocab_size, d_model)
        self.tgt_embed = Embed(target_vocab_size, d_model)
        self.src_pos = Positions(d_model, seq_len, dropout)
        self.tgt_pos = Positions(d_model, seq_len, dropout)
        self.projection_layer = Projection(d_model, target_vocab_size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def encode(self, source):
        mask = (source != PAD)[:, None, None, :]
        return self.encoder(self.src_pos(self.src_embed(source)), mask), mask

    def forward(self, source, target):
        """Logits [batch, length, vocabulary] of every position, padding included."""
        memory, source_mask = self.encode(source)
        length = target.shape[1]
        causal = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
        target_mask = (target != PAD)[:, None, None, :] & causal
        x = self.decoder(self.tgt_pos(self.tgt_embed(target)), memory, source_mask, target_mask)
        return self.projection_layer(x)

    @torch.no_grad()
    def greedy(self, source, most):
        """Ids of each row without start and end; one sentence token by token, without a cache."""
        rows = []
        for one in source:
            one = one[one != PAD].unsqueeze(0)
            memory, source_mask = self.encode(one)
            ids = [SOS]
            while len(ids) <= most:
                target = torch.tensor([ids])
                length = len(ids)
                mask = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
                x = self.decoder(self.tgt_pos(self.tgt_embed(target)), memory, source_mask, mask)
                logits = self.projection_layer(x[:, -1])
                logits[:, PAD] = -math.inf
                ids.append(int(logits.argmax()))
                if ids[-1] == EOS:
                    break
            rows.append([i for i in ids[1:] if i != EOS])
        return rows

    @torch.no_grad()
    def greedy_cached(self, source, most):
        """A batch at a time, keys and values cached, until every row has ended. Returns ids and the steps taken."""
        memory, source_mask = self.encode(source)
        batch = source.shape[0]
        caches = []
        for layer in self.decoder.layers:
            cross = layer.cross_attention_block
            caches.append({"k": None, "v": None, "ck": cross.split(cross.w_k(memory)), "cv": cross.split(cross.w_v(memory))})
        ids = torch.full((batch, 1), SOS)
        ended = torch.zeros(batch, dtype=torch.bool)
        rows = [[] for _ in range(batch)]
        for step in range(most):
            x = self.tgt_embed(ids) + self.tgt_pos.pe[:, step : step + 1]
            for layer, cache in zip(self.decoder.layers, caches):
                attention, connections = layer.self_attention_block, layer.residual_connections
                y = connections[0].norm(x)
                k, v = attention.split(attention.w_k(y)), attention.split(attention.w_v(y))
                cache["k"] = k if cache["k"] is None else torch.cat([cache["k"], k], dim=2)
                cache["v"] = v if cache["v"] is None else torch.cat([cache["v"], v], dim=2)
                x = x + attention.mix(attention.split(attention.w_q(y)), cache["k"], cache["v"], None)
                cross = layer.cross_attention_block
                y = connections[1].norm(x)
                x = x + cross.mix(cross.split(cross.w_q(y)), cache["ck"], cache["cv"], source_mask)
                x = x + layer.feed_forward_block(connections[2].norm(x))
            logits = self.projection_layer(self.decoder.norm(x)[:, -1])
            logits[:, PAD] = -math.inf
            ids = logits.argmax(dim=-1, keepdim=True)
            for row, word in enumerate(ids[:, 0].tolist()):
                if not ended[row] and word != EOS:
                    rows[row].append(word)
                ended[row] |= word == EOS
            if ended.all():
                break
        return rows, step + 1


def loss_of(logits, labels, label_smoothing=0.1):
    return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=PAD, label_smoothing=label_smoothing)
