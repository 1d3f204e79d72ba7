"""Plain implementations to compare with: what somebody writes in an afternoon with PyTorch, scikit-learn and XGBoost.

Each takes (X train, y train, groups, X test, seed) and answers with class probabilities (n, K) of the test windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from training.data.values import AnyArray

Array = AnyArray
Method = Callable[[Array, Array, Array, Array, int], Array]
EPOCHS, PATIENCE, BATCH, PEAK = 60, 10, 64, 2e-3


# -- on rich summaries ----------------------------------------------------------------------------------------------


def xgboost(X: Array, y: Array, _groups: Array, test: Array, seed: int) -> Array:
    """300 trees of depth 6: the settings that everybody starts with."""
    from xgboost import XGBClassifier

    model = XGBClassifier(
        n_estimators=300,
        max_depth=6,
        learning_rate=0.1,
        subsample=0.8,
        colsample_bytree=0.8,
        n_jobs=1,
        random_state=seed,
    )
    return model.fit(X, y).predict_proba(test)


def logistic(X: Array, y: Array, groups: Array, test: Array, seed: int) -> Array:
    """Standardised; the penalty by cross-validation over recordings."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    folds = min(5, np.unique(groups).size)
    grid = {"logisticregression__C": [0.01, 0.1, 1.0]}
    search = GridSearchCV(model, grid, cv=GroupKFold(folds, shuffle=True, random_state=seed))
    return search.fit(X, y, groups=groups).predict_proba(test)


def dense(X: Array, y: Array, _groups: Array, test: Array, seed: int) -> Array:
    """scikit-learn's network, 128 and 64 wide."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    net = MLPClassifier((128, 64), early_stopping=len(X) >= 200, max_iter=200, random_state=seed)
    return make_pipeline(StandardScaler(), net).fit(X, y).predict_proba(test)


# -- on windows (N, C, T) -------------------------------------------------------------------------------------------


def minirocket(X: Array, y: Array, _groups: Array, test: Array, seed: int) -> Array:
    """aeon's transform and a ridge classifier; its margins stand in for probabilities."""
    from aeon.transformations.collection.convolution_based import MiniRocket
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    ridge = RidgeClassifierCV(alphas=np.logspace(-3, 3, 10))
    model = make_pipeline(MiniRocket(random_state=seed, n_jobs=1), StandardScaler(with_mean=False), ridge)
    margin = model.fit(X, y).decision_function(test)
    margin = margin if margin.ndim == 2 else np.stack((-margin, margin), axis=1)
    shifted = np.exp(margin - margin.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)


def _network(family: str, channels: int, samples: int, classes: int) -> Any:
    import torch
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self, cell: Any) -> None:
            super().__init__()
            self.read = cell(channels, 64, batch_first=True, bidirectional=True)
            self.head = nn.Linear(256, classes)

        def forward(self, x: Any) -> Any:
            states, _ = self.read(x.transpose(1, 2))
            return self.head(torch.cat((states.mean(dim=1), states.amax(dim=1)), dim=1))

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = max(1, samples // 32)
            steps = samples // self.patch
            self.embed = nn.Conv1d(channels, 64, self.patch, stride=self.patch)
            self.place = nn.Parameter(torch.randn(1, steps, 64) * 0.02)
            layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, activation="gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(64, classes)

        def forward(self, x: Any) -> Any:
            tokens = self.embed(x).transpose(1, 2) + self.place
            return self.head(self.encoder(tokens).mean(dim=1))

    def convolution(inputs: int, outputs: int, kernel: int) -> Any:
        step = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2)
        return nn.Sequential(step, nn.BatchNorm1d(outputs), nn.ReLU())

    if family == "cnn":
        layers = convolution(channels, 64, 7), convolution(64, 128, 5), convolution(128, 64, 3)
        return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, classes))
    return Attention() if family == "transformer" else Recurrent({"gru": nn.GRU, "lstm": nn.LSTM}[family])


def network(family: str) -> Method:
    """A plain network: standardised channels, AdamW, one cycle, early stopping on a fifth of the recordings."""

    def method(X: Array, y: Array, groups: Array, test: Array, seed: int) -> Array:
        import torch
        from torch.nn import functional

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        mean, std = X.mean(axis=(0, 2), keepdims=True), X.std(axis=(0, 2), keepdims=True) + 1e-8
        given, asked = (torch.from_numpy(((each - mean) / std).astype("f4")) for each in (X, test))
        held = _held_out(y, groups, seed)
        learn, judge = np.flatnonzero(~held), np.flatnonzero(held)
        truth = torch.from_numpy(y)
        net = _network(family, X.shape[1], X.shape[2], int(y.max()) + 1)
        steps = -(-learn.size // BATCH) * EPOCHS
        optimizer = torch.optim.AdamW(net.parameters(), lr=PEAK, weight_decay=0.01)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=steps)
        best, best_loss, best_epoch = net.state_dict(), np.inf, 0
        for epoch in range(EPOCHS):
            net.train()
            for rows in torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(learn)).split(BATCH):
                if len(rows) > 1:
                    loss = functional.cross_entropy(net(given[rows]), truth[rows], label_smoothing=0.05)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                cycle.step()
            net.eval()
            with torch.no_grad():
                judged = float(functional.cross_entropy(net(given[judge]), truth[judge]))
            if judged < best_loss:
                best_loss, best_epoch = judged, epoch
                best = {name: value.clone() for name, value in net.state_dict().items()}
            if epoch - best_epoch >= PATIENCE:
                break
        net.load_state_dict(best)
        with torch.no_grad():
            return torch.cat([net(part).softmax(dim=1) for part in asked.split(512)]).numpy()

    return method


def _held_out(y: Array, groups: Array, seed: int) -> Array:
    """A fifth of the recordings, in which no class is missing if that can be had."""
    rng = np.random.default_rng(seed)
    ids, of_window = np.unique(groups, return_inverse=True)
    held = np.zeros(ids.size, dtype=bool)
    first = {number: y[of_window == number][0] for number in range(ids.size)}
    for label in np.unique(y):
        mine = rng.permutation([number for number in range(ids.size) if first[number] == label])
        held[mine[: max(1, mine.size // 5)]] = True
    return held[of_window]


ON_FEATURES: dict[str, Method] = {"XGBoost": xgboost, "logistic": logistic, "plain mlp": dense}
ON_WINDOWS: dict[str, Method] = {
    "MiniRocket": minirocket,
    **{f"plain {name}": network(name) for name in ("cnn", "gru", "lstm", "transformer")},
}
