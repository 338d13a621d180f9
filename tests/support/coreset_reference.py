"""Every coreset method once more, as slow loops written from its formula."""

import itertools
import math

import numpy as np


def herding(x, k):
    mean, chosen = x.mean(0), []
    for i in range(k):
        rest = [j for j in range(len(x)) if j not in chosen]
        target = (i + 1) * mean - x[chosen].sum(0)
        chosen.append(min(rest, key=lambda j: np.linalg.norm(target - x[j])))
    return chosen


def farthest_first(distance, count, k, first):
    chosen = [first]
    while len(chosen) < k:
        rest = [j for j in range(count) if j not in chosen]
        chosen.append(max(rest, key=lambda j: min(distance(j, c) for c in chosen)))
    return chosen


def k_center(x, k):
    first = int(np.linalg.norm(x - x.mean(0), axis=1).argmin())
    return farthest_first(lambda i, j: np.linalg.norm(x[i] - x[j]), len(x), k, first)


def symmetric_kl(p, q):
    return sum((a - b) * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))


def contextual_diversity(p, k):
    mean = p.mean(0)
    first = min(range(len(p)), key=lambda j: symmetric_kl(p[j], mean))
    return farthest_first(lambda i, j: symmetric_kl(p[i], p[j]), len(p), k, first)


def cosines(x):
    norms = np.linalg.norm(x, axis=1)
    return x @ x.T / norms[:, None] / norms


def facility_location(similarity, k):
    count = len(similarity)
    chosen = []
    for _ in range(k):
        rest = [j for j in range(count) if j not in chosen]
        # Rounded, so that among equal gains the lowest index wins.
        chosen.append(max(rest, key=lambda j: round(similarity[[*chosen, j]].max(0).sum(), 9)))
    return chosen


def graph_cut(x, k, trade_off=1.0):
    similarity = (1 + cosines(x)) / 2
    chosen = []
    for _ in range(k):
        rest = [j for j in range(len(x)) if j not in chosen]
        chosen.append(
            max(
                rest,
                key=lambda j: trade_off * similarity[j].sum() - 2 * similarity[j, chosen].sum(),
            )
        )
    return chosen


def distances(x):
    return np.linalg.norm(x[:, None] - x, axis=2)


def craig(x, k):
    apart = distances(x)
    chosen = facility_location(apart.max() - apart, k)
    sizes = [0] * k
    for i in range(len(x)):
        sizes[int(np.argmin(apart[i, chosen]))] += 1
    return chosen, sizes


def gradients(h, p, y):
    """(p − y) ⊗ [1, h], written out."""
    rows = []
    for features, outputs, label in zip(h, p, y, strict=True):
        error = outputs.copy()
        error[label] -= 1
        rows.append(np.outer(error, [1, *features]).ravel())
    return np.array(rows)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def glister(h, z, y, k, *, validation, step_size):
    """Each step changes the weights of the last layer, and with them the validation logits."""
    inputs = np.column_stack([np.ones(len(h)), h])
    held = np.column_stack([np.ones(len(validation[0])), validation[0]])
    train = gradients(h, softmax(z), y)
    change = np.zeros((z.shape[1], inputs.shape[1]))
    chosen = []
    for _ in range(k):
        outputs = softmax(validation[1] + held @ change.T)
        slope = gradients(validation[0], outputs, validation[2]).mean(0)
        rest = [j for j in range(len(h)) if j not in chosen]
        chosen.append(max(rest, key=lambda j: train[j] @ slope))
        change -= step_size * train[chosen[-1]].reshape(change.shape)
    return chosen


def hessian(h, p):
    total = 0
    for features, outputs in zip(h, p, strict=True):
        x = np.array([1, *features])
        total = total + np.kron(np.diag(outputs) - np.outer(outputs, outputs), np.outer(x, x))
    return total / len(h)


def influence(h, p, y, validation, damping):
    matrix = hessian(h, p)
    matrix = matrix + damping * np.eye(len(matrix))
    target = gradients(*validation).mean(0)
    return gradients(h, p, y) @ np.linalg.inv(matrix) @ target


def dp(h, p, y, k, damping):
    x = np.column_stack([np.ones(len(h)), h])
    classes = np.mean([np.diag(q) - np.outer(q, q) for q in p], axis=0)
    inputs = np.mean([np.outer(row, row) for row in x], axis=0)
    damp = math.sqrt(damping)
    inverse = np.kron(
        np.linalg.inv(classes + damp * np.eye(len(classes))),
        np.linalg.inv(inputs + damp * np.eye(len(inputs))),
    )
    effects = gradients(h, p, y) @ inverse.T
    left_out, total = [], 0
    for _ in range(len(h) - k):
        rest = [j for j in range(len(h)) if j not in left_out]
        best = min(rest, key=lambda j: np.linalg.norm(total + effects[j]))
        left_out.append(best)
        total = total + effects[best]
    return sorted(set(range(len(h))) - set(left_out))


def cal(h, p, neighbours):
    scores = []
    for i in range(len(h)):
        others = sorted((np.linalg.norm(h[i] - h[j]), j) for j in range(len(h)) if j != i)
        near = [j for _, j in others[:neighbours]]
        scores.append(np.mean([symmetric_kl(p[i], p[j]) for j in near]))
    return np.array(scores)


def forgetting(correct):
    """None is a visit that was not made."""
    counts = []
    for visits in zip(*correct, strict=True):
        made = [visit for visit in visits if visit is not None]
        events = sum(a == 1 and b == 0 for a, b in itertools.pairwise(made))
        counts.append(events if 1 in made else len(correct))
    return counts


def dyn_unc(p, window):
    p = np.asarray(p)
    spreads = [p[start : start + window].std(0, ddof=1) for start in range(len(p) - window + 1)]
    return np.mean(spreads, axis=0)


def ccs_counts(sizes, k):
    """How many samples each stratum gives, the smallest first."""
    counts, left, remaining = {}, k, sorted(sizes, key=sizes.get)
    while remaining:
        stratum = remaining[0]
        counts[stratum] = min(sizes[stratum], left // len(remaining))
        left -= counts[stratum]
        remaining = remaining[1:]
    return counts
