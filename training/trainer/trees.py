"""Read boosters from elsewhere: XGBoost gets no trees whose structure was not checked.

XGBoost follows the numbers of a model file as they are: for a child or a feature that does not exist it reads beyond
the end of an array, and on a cycle it never ends. This module reads and checks the trees. XGBoost then reads a model
made here, into which only the checked trees and the base score are taken from the file.
"""

import json
from typing import Annotated

import msgspec
import numpy as np
import xgboost

from training.data.values import Json, JsonDict

ROOT = 2**31 - 1  # the parent of a tree's first node
NONE = -1  # the child of a leaf
_SINGLE = float(np.finfo(np.float32).max)
Index = Annotated[int, msgspec.Meta(ge=NONE, lt=ROOT)]
Number = Annotated[float, msgspec.Meta(ge=-_SINGLE, le=_SINGLE)]


class Tree(msgspec.Struct):
    """A tree as XGBoost's JSON has it: lists with a value for each node."""

    left_children: list[Index]
    right_children: list[Index]
    split_indices: list[Index]
    default_left: list[Annotated[int, msgspec.Meta(ge=0, le=1)]]
    split_conditions: list[Number]
    base_weights: list[Number]
    loss_changes: list[Number]
    sum_hessian: list[Number]

    def checked(self, number: int, features: int, depth: int) -> JsonDict:
        """Return the tree as XGBoost reads it.

        Raises ValueError if its nodes are not one tree of at most ``depth``, or a node asks for a feature that does not
        exist.
        """
        nodes = len(self.left_children)
        if not nodes or any(len(one) != nodes for one in msgspec.structs.astuple(self)):
            raise ValueError(f"tree {number} is empty, or has lists of unequal lengths")
        left, right, asked = map(np.array, (self.left_children, self.right_children, self.split_indices))
        inner = np.flatnonzero(left != NONE)
        children = np.concatenate((left[inner], right[inner]))
        one_tree = np.array_equal(np.sort(children), np.arange(1, nodes)) and (right[left == NONE] == NONE).all()
        if not one_tree or not 0 <= asked.min() <= asked.max() < features:
            raise ValueError(f"tree {number} is no binary tree, or asks for a feature that does not exist")
        parents, above = np.zeros(nodes, int), np.arange(nodes)
        parents[left[inner]] = parents[right[inner]] = inner
        for _ in range(depth):
            above = parents[above]
        if above.any():
            raise ValueError(f"tree {number} has a cycle, or is deeper than {depth}")
        return {
            **msgspec.structs.asdict(self),
            "id": number,
            "parents": [ROOT, *parents[1:].tolist()],
            "split_type": [0] * nodes,
            **{f"categories{of}": [] for of in ("", "_nodes", "_segments", "_sizes")},
            "tree_param": {
                "num_deleted": "0",
                "num_feature": str(features),
                "num_nodes": str(nodes),
                "size_leaf_vector": "1",
            },
        }


def learner_of(text: bytes | str) -> JsonDict:
    """Return the member ``learner`` of XGBoost's JSON, unchecked. Raises ValueError or LookupError for other bytes."""
    return msgspec.json.decode(text, type=JsonDict)["learner"]


def checked(learner: Json, *, features: int, classes: int, depth: int, threads: int = 1) -> xgboost.Booster:
    """Return the booster, with trees of at most ``depth``. Raises ValueError or LookupError for a ``learner`` of
    another form."""
    own, groups = learner["gradient_booster"]["model"], classes if classes > 2 else 1
    trees = msgspec.convert(own["trees"], list[Tree])
    scores = msgspec.json.decode(learner["learner_model_param"]["base_score"], type=Number | list[Number])
    if len(trees) % groups or (isinstance(scores, list) and len(scores) != groups):
        raise ValueError(f"its number of trees, or of base scores, does not fit {classes} classes")
    whole = json.loads(xgboost.Booster({**objective(classes), "num_feature": features}).save_raw("json"))
    whole["learner"]["learner_model_param"]["base_score"] = str(scores)
    model = whole["learner"]["gradient_booster"]["model"]
    model["trees"] = [tree.checked(number, features, depth) for number, tree in enumerate(trees)]
    model["tree_info"] = [*range(groups)] * (len(trees) // groups)
    model["iteration_indptr"] = [*range(0, len(trees) + 1, groups)]
    model["gbtree_model_param"]["num_trees"] = str(len(trees))
    booster = xgboost.Booster({"nthread": threads})
    booster.load_model(bytearray(msgspec.json.encode(whole)))
    return booster


def objective(classes: int) -> JsonDict:
    """Return XGBoost's parameters for the objective."""
    many = {"objective": "multi:softprob", "num_class": classes}
    return many if classes > 2 else {"objective": "binary:logistic"}


def to_json(booster: xgboost.Booster) -> bytes:
    """Return the booster in the form that ``learner_of`` reads."""
    return bytes(booster.save_raw("json"))
