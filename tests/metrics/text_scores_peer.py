"""The peers' answers to text_scores_parity_test.py, recorded (tests/recorded.py): sacrebleu, torchmetrics."""

import random

import recorded

RECORD = recorded.Record("text_scores", ["metrics/text_scores_peer.py"], ["sacrebleu", "torchmetrics", "torch", "seqeval"])

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
        words[at : at + draw.randrange(3)] = draw.choice([[], [draw.choice(WORDS)], [draw.choice(WORDS)] * 2, words[at : at + 2][::-1]])
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


def sentences():
    """200 corpora of label sequences, true and predicted, in each scheme, with mistakes in the scheme too."""
    draw = random.Random(23)
    found = []
    for number in range(200):
        tags = ["BIO", "IO", "BIOES", "BIOES"][number % 4]
        labels = ["O"] + [f"{tag}-{kind}" for tag in tags if tag != "O" for kind in ("PER", "LOC", "a-b")] + ["B", "I"] * (number % 5 == 0)
        right = [[draw.choice(labels + ["O"] * 3) for _ in range(draw.randrange(1, 20))] for _ in range(draw.randrange(1, 6))]
        guess = [[label if draw.random() < 0.7 else draw.choice(labels) for label in sentence] for sentence in right]
        found.append((guess, right))
    return found


def answers_to_questions():
    """400 predictions, each with one to three right answers."""
    draw = random.Random(24)
    words = [*WORDS, "A", "an", "The", "a\u20ac", "the\u0301", "x_the", "\u03a3\u0391\u03a3", "\u2167", "\u00b2a"]
    found = []
    for _ in range(400):
        right = [" ".join(draw.choices(words, k=draw.randrange(0, 6))) for _ in range(draw.randrange(1, 4))]
        found.append((draw.choice([changed(draw, right[0]), right[-1].upper(), "the " + right[0], ""]), right))
    return found


def options(name):
    """(score, options) of "bleu,intl,lowercase" and "chrf2++,lowercase"."""
    score, *rest = name.split(",")
    given = {"lowercase": "lowercase" in rest}
    if score == "bleu" or score == "sentence_bleu":
        return score, {**given, "tokenize": rest[0] if rest and rest[0] != "lowercase" else "13a"}
    return score, given


def answer(score, hypotheses, references):
    """What the peer says; a number that it does not have is "none"."""
    import sacrebleu
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
    from torchmetrics.functional import text as torchmetrics

    if score == "entities":
        from seqeval import metrics

        return [
            f"{value:.13g}"
            for value in (
                metrics.precision_score(references, hypotheses),
                metrics.recall_score(references, hypotheses),
                metrics.f1_score(references, hypotheses),
            )
        ] + [
            [kind, *(f"{values[name]:.13g}" for name in ("precision", "recall", "f1-score", "support"))]
            for kind, values in metrics.classification_report(references, hypotheses, output_dict=True).items()
            if " avg" not in kind
        ]
    if score == "squad":
        found = torchmetrics.squad(
            [{"prediction_text": hypotheses[0], "id": "0"}], [{"answers": {"answer_start": [0] * len(references), "text": references}, "id": "0"}]
        )
        return [round(float(found[name]), 4) for name in ("exact_match", "f1")]
    if score == "lower":
        return [text.lower() for text in hypotheses]
    if score == "intl":
        from sacrebleu.tokenizers.tokenizer_intl import TokenizerV14International

        return [TokenizerV14International()(hypothesis.rstrip()) for hypothesis in hypotheses]
    if score == "13a":
        return [Tokenizer13a()(hypothesis.rstrip()) for hypothesis in hypotheses]
    score, given = options(score)
    if score == "bleu":
        value = sacrebleu.corpus_bleu(hypotheses, [references], **given).score
    elif score in ("chrf2", "chrf2++"):
        words = 2 * (score == "chrf2++")
        value = sacrebleu.CHRF(word_order=words, **given).corpus_score(hypotheses, [references]).score
    elif score == "sentence_bleu":
        value = sacrebleu.sentence_bleu(hypotheses[0], references, **given).score
    elif score == "sentence_chrf":
        value = sacrebleu.sentence_chrf(hypotheses[0], references).score
    else:
        function = {"torchmetrics_bleu": torchmetrics.bleu_score, "cer": torchmetrics.char_error_rate, "wer": torchmetrics.word_error_rate}[score]
        value = float(function(hypotheses, references))
    return float(f"{value:.13g}") if abs(value) < float("inf") else "none"
