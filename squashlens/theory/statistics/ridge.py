"""Ridge regression of several targets on the same features, with a separate penalty for each target."""

import numpy as np

# Candidates; each target gets the one with the least leave-one-out error.
PENALTIES = np.logspace(-3, 6, 19)


def ridge(features: np.ndarray, targets: np.ndarray, unseen: np.ndarray) -> np.ndarray:
    """Predict `targets` (row, target) for `unseen` features (row, d), after a fit to `features` (row, d).

    With x the centred features in units of their root mean square, minimise ‖t − b − x w‖² + α ‖w‖²; the intercept b
    has no penalty. α is the one of `PENALTIES` with the least Σ_i (e_i / (1 − H_ii))², e = t − H t: the exact sum of
    squares of leave-one-out errors, with H = 11ᵀ/n + x (xᵀx + α)⁻¹ xᵀ.

    Coordinates are not standardised one by one, since a coordinate that only varies by rounding would then count as
    much as any other. A prediction is limited to the range of the targets, extended by its width on either side.
    """
    feature_means = features.mean(axis=0)
    target_means = targets.mean(axis=0)
    size = np.sqrt(((features - feature_means) ** 2).mean())
    scale = size if size > 0 else 1.0
    x = (features - feature_means) / scale
    t = targets - target_means
    # x = U S Vᵀ, where U is (row, direction), and S² the eigenvalues of x xᵀ
    if len(x) > x.shape[1]:
        u, singular, _ = np.linalg.svd(x, full_matrices=False)
        squares = singular**2
    else:  # several times faster with many coordinates
        squares, u = np.linalg.eigh(x @ x.T)
        squares = np.maximum(squares, 0)
    shrunk = squares / (squares + PENALTIES[:, None])  # (penalty, direction)
    along = u.T @ t  # (direction, target)
    residual = t - u @ (shrunk[:, :, None] * along)  # (penalty, row, target)
    leverage = 1 / len(x) + shrunk @ (u**2).T  # H_ii, (penalty, row)
    of_others = np.maximum(1 - leverage, np.finfo(float).eps)[:, :, None]  # 1 − H_ii
    errors = ((residual / of_others) ** 2).sum(
        axis=1
    )  # leave-one-out, (penalty, target)
    chosen = PENALTIES[errors.argmin(axis=0)]  # one for each target
    weights = x.T @ (u @ (along / (squares[:, None] + chosen)))
    predicted = target_means + (unseen - feature_means) / scale @ weights
    low = targets.min(axis=0)
    high = targets.max(axis=0)
    return np.clip(predicted, low - (high - low), high + (high - low))
