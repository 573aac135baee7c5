"""transformers' generate() with the model of original.py: what transformer_parity_test.py compares our beam search with, recorded
(tests/recorded.py)."""

import original
import recorded

RECORD = recorded.Record("beam_search", ["translation/beam_search_peer.py", "translation/original.py"], ["torch", "transformers"])


def as_transformers_model(inner):
    import torch
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

    class Encoder(torch.nn.Module):
        main_input_name = "input_ids"

        def forward(self, input_ids, **_):
            return BaseModelOutput(last_hidden_state=inner.encode(input_ids)[0])

    class Model(PreTrainedModel, GenerationMixin):
        config_class = PretrainedConfig
        main_input_name = "input_ids"
        device = torch.device("cpu")

        def __init__(self):
            super().__init__(
                PretrainedConfig(
                    is_encoder_decoder=True,
                    pad_token_id=original.PAD,
                    bos_token_id=original.SOS,
                    eos_token_id=original.EOS,
                    decoder_start_token_id=original.SOS,
                )
            )
            self.encoder, self.inner = Encoder(), inner

        def get_encoder(self, *_, **__):
            return self.encoder

        def prepare_inputs_for_generation(self, input_ids, encoder_outputs=None, attention_mask=None, **_):
            return {"decoder_input_ids": input_ids, "encoder_outputs": encoder_outputs, "attention_mask": attention_mask}

        def forward(self, decoder_input_ids=None, encoder_outputs=None, attention_mask=None, **_):
            length = decoder_input_ids.shape[1]
            causal = torch.ones(1, 1, length, length, dtype=torch.bool).tril()
            x = inner.decoder(
                inner.tgt_pos(inner.tgt_embed(decoder_input_ids)), encoder_outputs.last_hidden_state, attention_mask[:, None, None, :].bool(), causal
            )
            return Seq2SeqLMOutput(logits=inner.projection_layer(x))

    return Model().eval()


def beam_search(inner, source, num_beams, length_penalty, most):
    """[[ids without start and end, score], ...] of the rows of `source`; padding is never chosen."""
    inputs = [source.tolist(), [[name, f"{weight.double().sum().item():.4f}"] for name, weight in inner.state_dict().items()]]

    def compute():
        found = as_transformers_model(inner).generate(
            source,
            attention_mask=(source != original.PAD).long(),
            num_beams=num_beams,
            max_new_tokens=most,
            do_sample=False,
            early_stopping=True,
            length_penalty=length_penalty,
            suppress_tokens=[original.PAD],
            use_cache=False,
            return_dict_in_generate=True,
            output_scores=True,
        )
        rows = [[word for word in row[1:] if word not in (original.PAD, original.EOS)] for row in found.sequences.tolist()]
        return [list(pair) for pair in zip(rows, found.sequences_scores.tolist())]

    return RECORD.value(f"{num_beams} beams, penalty {length_penalty}", recorded.hash_of(*inputs), compute)
