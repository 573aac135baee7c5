"""The peers' answers to text_scores_parity_test.py, recorded (tests/recorded.py): sacrebleu, torchmetrics."""

import random

import recorded

RECORD = recorded.Record("text_scores", ["metrics/text_scores_peer.py"], ["sacrebleu", "torchmetrics", "torch"])

WORDS = """the The a cat Cat sat mat on of to-morrow well-known U.S. e.g. 3.14 1,000 1-2 10- 'tis don't it's (so) [x] "yes" "no." end. stop, ...
 &quot;hi&quot; &amp;lt; &lt;b&gt; <skipped> -\n a-\n \n $5 50% x=y a/b @me #tag ~ ` \u00e9t\u00e9 \u00e9. \u4e2d\u6587\u3002 \u4e2d,\u6587 na\u00efve \U0001f600 \U0001f600. \u2014 \u00ab oui \u00bb
 \u0130 \u00df e\u0301 \x1c \x85 \u200b \u00a0 \u2028 \u3000 . , .. ,, 1. .1 1.a a.1 .,. {} | \\ ^ _ ? ! ; :""".split(" ")


def text(draw):
    words = draw.choices(WORDS, k=draw.choice([0, 1, 2, 3, 5, 8, 12, 20, 30, 40]))
    return draw.choice(["", "", " ", "\t"]) + "".join(word + draw.choice([" "] * 9 + ["", "  ", "\u00a0"]) for word in words)


def changed(draw, reference):
    """As a translation might differ: words left out, twice, swapped, others."""
    words = reference.split(" ")
    for _ in range(draw.choice([0, 1, 2, 3, 4, 9])):
        at = draw.randrange(len(words) + 1)
        words[at:at + draw.randrange(3)] = draw.choice([[], [draw.choice(WORDS)], [draw.choice(WORDS)] * 2, words[at:at + 2][::-1]])
    return " ".join(words)


def pairs():
    """500 pairs; in every tenth the two have nothing to do with each other, or one is empty."""
    draw = random.Random(22)
    found = []
    for number in range(500):
        reference = text(draw)
        if number % 10:
            found.append((changed(draw, reference), reference))
        else:
            found.append(draw.choice([(text(draw), reference), ("", reference), (reference, ""), ("", "")]))
    return found


def answer(score, hypotheses, references):
    """What the peer says; a number that it does not have is "none"."""
    import sacrebleu
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    from torchmetrics.functional import text as torchmetrics

    if score == "13a":
        return [Tokenizer13a()(hypothesis.rstrip()) for hypothesis in hypotheses]
    if score == "bleu":
        value = sacrebleu.corpus_bleu(hypotheses, [references]).score
    elif score == "chrf2":
        value = sacrebleu.corpus_chrf(hypotheses, [references]).score
    elif score == "sentence_bleu":
        value = sacrebleu.sentence_bleu(hypotheses[0], references).score
    elif score == "sentence_chrf":
        value = sacrebleu.sentence_chrf(hypotheses[0], references).score
    else:
        function = {"torchmetrics_bleu": torchmetrics.bleu_score, "cer": torchmetrics.char_error_rate, "wer": torchmetrics.word_error_rate}[score]
        value = float(function(hypotheses, references))
    return float(f"{value:.13g}") if abs(value) < float("inf") else "none"
