"""The peers' answers to metrics_parity_test.py, recorded (tests/recorded.py): scikit-learn, SciPy, torchmetrics."""

import random

import recorded

RECORD = recorded.Record("metrics", ["metrics/metrics_peer.py"], ["scikit-learn", "scipy", "torchmetrics", "torch"])


def scores_and_labels(random_numbers, classes):
    """Imbalanced, often with classes that never occur; scores favor the right class."""
    samples = random_numbers.randrange(1, 40)
    weights = [random_numbers.random() ** 3 for _ in range(classes)]
    if classes > 2 and random_numbers.random() < 0.5:
        weights[random_numbers.randrange(classes)] = 0.0
    labels = random_numbers.choices(range(classes), weights, k=samples)
    scores = [[random_numbers.random() + (0.4 if c == label else 0) for c in range(classes)] for label in labels]
    return scores, labels


def numbers(random_numbers):
    samples = random_numbers.randrange(2, 60)
    labels = [random_numbers.gauss(random_numbers.choice([0, 100]), 3) for _ in range(samples)]
    return [0.7 * label + random_numbers.gauss(0, 2) for label in labels], labels


def tied_numbers(random_numbers):
    """Some of few values, so that many are equal; some that do not vary."""
    samples = random_numbers.randrange(2, 60)
    values = random_numbers.choice([1, 2, 3, 10])
    return (
        [random_numbers.randrange(values) / 4 for _ in range(samples)],
        [float(random_numbers.randrange(random_numbers.choice([1, values, 20]))) for _ in range(samples)],
    )


AVERAGES = ("macro", "weighted", "micro")
ZERO_DIVISIONS = ("0", "1", "nan")


def questions():
    """(outputs, labels, [(metric, argument)]) of each case: 200 of classes, of which 60 have two, 200 of numbers, 100 of numbers
    with many ties. An argument of precision, recall and f1: average or class, zero_division."""
    random_numbers = random.Random(20)
    cases = []
    for case in range(200):
        classes = 2 if case < 60 else random_numbers.randrange(3, 9)
        outputs, labels = scores_and_labels(random_numbers, classes)
        averages = ("binary",) if case < 60 else ()
        cases.append(
            (
                outputs,
                labels,
                [("accuracy", ""), ("top_k", str(min(3, classes - 1))), ("perplexity", "")]
                + [
                    (metric, f"{average},{zero}")
                    for metric in ("precision", "recall", "f1")
                    for zero in ZERO_DIVISIONS[case % 3 : case % 3 + 1]
                    for average in (*averages, *AVERAGES, *range(classes))
                ],
            )
        )
    for _ in range(200):
        cases.append((*numbers(random_numbers), [(metric, "") for metric in ("mae", "mse", "rmse", "pearson", "spearman", "r2")]))
    for _ in range(100):
        cases.append((*tied_numbers(random_numbers), [(metric, "") for metric in ("rmse", "spearman", "r2")]))
    return cases


def answer(outputs, labels, metric, argument):
    value = exact_answer(outputs, labels, metric, argument)
    return "nan" if value != value else float(f"{value:.13g}")


def exact_answer(outputs, labels, metric, argument):
    import scipy.stats
    import torch
    import torchmetrics.text
    from sklearn import metrics

    errors = {"mae": metrics.mean_absolute_error, "mse": metrics.mean_squared_error, "rmse": metrics.root_mean_squared_error, "r2": metrics.r2_score}
    if metric in errors:
        return float(errors[metric](labels, outputs))
    if metric in ("pearson", "spearman"):
        return float((scipy.stats.pearsonr if metric == "pearson" else scipy.stats.spearmanr)(outputs, labels).statistic)
    scores = torch.tensor(outputs, dtype=torch.float64)
    predicted = scores.argmax(1).tolist()
    if metric == "accuracy":
        return float(metrics.accuracy_score(labels, predicted))
    if metric == "top_k":
        classes = list(range(scores.shape[1]))
        if len(classes) == 2:
            return float(metrics.accuracy_score(labels, predicted))  # of two classes it takes one score, with a threshold
        return float(metrics.top_k_accuracy_score(labels, scores.numpy(), k=int(argument), labels=classes))
    if metric == "perplexity":
        measure = torchmetrics.text.Perplexity(ignore_index=-100).double()
        measure.set_dtype(torch.float64)
        measure.update(scores[None], torch.tensor([labels]))
        return float(measure.compute())
    function = {"precision": metrics.precision_score, "recall": metrics.recall_score, "f1": metrics.f1_score}[metric]
    average, zero = argument.split(",")
    if average.isdigit():
        return float(function(labels, predicted, labels=[int(average)], average=None, zero_division=float(zero))[0])
    return float(function(labels, predicted, average=average, zero_division=float(zero)))
