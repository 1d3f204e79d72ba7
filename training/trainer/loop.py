"""The training loop of all networks.

No step waits for the GPU, whose work is queued, except to save the state. The sum of the losses stays on the GPU; it is
read once an epoch, and when the state is saved. If one loss is not finite, neither is the sum: on a GPU, the optimiser
then takes no further step.

The loop can stop after any step and resume with the same result. The order of an epoch and the learning rate are
computed again from settings, epoch and step; everything else that matters is saved (`SavedLoop`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor, nn

from training.trainer.contract import BadArguments, Keeper, Progress, Stop
from training.trainer.weights_file import read, require_shapes, written
from training.trainer.windows import Windows, moved

WARM_UP = 0.15  # share of all steps until the peak learning rate
FIRST, LAST = 0.05, 0.002  # learning rate at the ends, as shares of the peak


@dataclass(frozen=True, kw_only=True)
class LoopSpec:
    """The settings of the training loop. ``lr`` is the highest learning rate."""

    epochs: int
    batch_size: int
    lr: float
    weight_decay: float
    patience: int
    seed: int


@dataclass
class LoopState:
    """All that the loop must save besides weights, optimiser and random state."""

    epoch: int = 0  # epochs completed
    step: int = 0  # steps taken in the current epoch
    loss_sum: float = 0.0  # over the windows of the current epoch
    best_loss: float = math.inf
    best_epoch: int = 0
    history: list[dict[str, float | int | None]] = field(default_factory=list)


class SavedLoop(msgspec.Struct):
    """The saved state of a training in progress; each ``bytes`` value holds tensors in the form of a ``.pt`` file."""

    memory: LoopState
    net: bytes
    best: bytes
    moments: dict[int, bytes]  # of the optimiser, by the number of the parameter
    random: bytes


def train(
    net: nn.Module,
    *,
    windows: Windows,
    loss_of: Callable[[Tensor], Tensor],
    validate: Callable[[], tuple[float, float | None]] | None,
    spec: LoopSpec,
    progress: Progress,
    stop: Stop,
    keeper: Keeper,
) -> list[dict[str, float | int | None]]:
    """Train ``net`` in place, set it to the weights of its best epoch, and return the history.

    ``loss_of(rows)`` returns the mean loss of the training ``windows`` at ``rows`` (B,); ``rows`` is on the device
    ``windows.place``. ``validate()`` returns the validation loss, which decides when to stop, and a metric for people.
    Without ``validate`` the last epoch is the best. Raises ``BadArguments`` if a training loss is not finite (on a GPU
    only after the epoch), before that loss changes a weight. Raises ``BadArguments`` also for a validation loss that is
    not finite, and ``Interrupted`` between steps.
    """
    optimizer, learnt = _optimizer(net, spec), list(net.parameters())
    memory, best = LoopState(), _copy(net)
    device = learnt[0].device
    total = torch.zeros((), dtype=torch.double, device=device)
    steps = math.ceil(len(windows) / spec.batch_size)

    def snapshot() -> bytes:
        memory.loss_sum = total.item()
        return _pack(net, optimizer, best, memory)

    saved = keeper.load()
    if saved is not None:
        memory, best = _unpack(saved, net, optimizer)
        total.fill_(memory.loss_sum)
    keeper.watch(snapshot)
    progress.begin_epochs()

    while memory.epoch < spec.epochs and memory.epoch - memory.best_epoch < spec.patience:
        net.train()
        for rows in _batches(windows, spec, memory.epoch)[memory.step :]:
            stop.check()
            keeper.tick()
            _set_rate(optimizer, spec, memory.epoch * steps + memory.step, spec.epochs * steps)
            loss = loss_of(rows)
            total.add_(loss.detach(), alpha=len(rows))
            if device.type != "cpu":
                _hold_back(optimizer, total)
            elif not math.isfinite(total.item()):  # waits for nobody here
                raise BadArguments(_diverged(memory.epoch, spec))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(learnt, 1.0)
            optimizer.step()
            memory.step += 1

        train_loss = total.item() / len(windows)
        net.eval()
        with torch.no_grad():
            val_loss, metric = (None, None) if validate is None else validate()
        if not math.isfinite(train_loss + (val_loss or 0.0)):
            raise BadArguments(_diverged(memory.epoch, spec))
        memory.epoch, memory.step = memory.epoch + 1, 0
        total.zero_()
        memory.history.append(
            {"epoch": memory.epoch, "train_loss": train_loss, "val_loss": val_loss, "val_metric": metric}
        )
        if val_loss is None or val_loss < memory.best_loss:
            memory.best_loss, memory.best_epoch, best = val_loss or 0.0, memory.epoch, _copy(net)
        progress.epoch(memory.epoch, spec.epochs, loss=train_loss, metric=metric)

    net.load_state_dict(best)
    net.eval()
    return memory.history


def _diverged(epoch: int, spec: LoopSpec) -> str:
    return f"the loss is not finite in epoch {epoch + 1} with lr {spec.lr:g}: choose a lower lr"


def _optimizer(net: nn.Module, spec: LoopSpec) -> torch.optim.AdamW:
    """Make the optimiser; weight decay applies only to parameters of two or more dimensions, except those marked
    ``decays = False``."""
    learnt = [parameter for parameter in net.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in learnt if getattr(parameter, "decays", parameter.ndim > 1)]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in learnt if id(parameter) not in chosen]
    groups = [{"params": matrices, "weight_decay": spec.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=spec.lr, betas=(0.9, 0.98), fused=True)


def _hold_back(optimizer: torch.optim.Optimizer, total: Tensor) -> None:
    """Make the next step change nothing if ``total`` is not finite, without moving ``total`` to the CPU."""
    optimizer.found_inf = (total * 0).ne(0).float()  # type: ignore[attr-defined]


def _batches(windows: Windows, spec: LoopSpec, epoch: int) -> Sequence[Tensor]:
    """Return the row numbers of an epoch's windows in batches.

    A last batch of a single window is left out, as norms cannot process it, unless it is the only batch. The order is
    drawn on the CPU from seed and epoch, and moved to the device of the windows in one copy.
    """
    generator = torch.Generator().manual_seed(spec.seed * 100_003 + epoch)
    order = windows.order(generator, spec.batch_size)
    batches = moved(order, windows.place).split(spec.batch_size)
    return batches[:-1] if len(batches) > 1 and len(batches[-1]) == 1 else batches


def _set_rate(optimizer: torch.optim.Optimizer, spec: LoopSpec, step: int, steps: int) -> None:
    """Set the learning rate: a linear rise, then half a cosine down."""
    done = step / max(steps, 1)
    if done < WARM_UP:
        share = FIRST + (1 - FIRST) * done / WARM_UP
    else:
        share = LAST + (1 - LAST) * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP))) / 2
    for group in optimizer.param_groups:
        group["lr"] = spec.lr * share


def _copy(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in net.state_dict().items()}


def _pack(net: nn.Module, optimizer: torch.optim.Optimizer, best: dict[str, Tensor], memory: LoopState) -> bytes:
    random = {"cpu": torch.get_rng_state()}
    if next(net.parameters()).is_cuda:
        random["cuda"] = torch.cuda.get_rng_state()
    moments = {number: written(own) for number, own in optimizer.state_dict()["state"].items()}
    return msgspec.msgpack.encode(SavedLoop(memory, written(net.state_dict()), written(best), moments, written(random)))


def _unpack(saved: bytes, net: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[LoopState, dict[str, Tensor]]:
    """Set the training to a saved state, which may come from another machine. Raises ValueError or its like for a state
    of another form. Return the state of the loop, and the best weights."""
    found = msgspec.msgpack.decode(saved, type=SavedLoop)
    best, random = read(found.best), read(found.random)
    require_shapes(best, net.state_dict())
    learnt = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    moments = {number: read(own) for number, own in found.moments.items()}
    for number, own in moments.items():  # PyTorch does not check them, and its kernels rely on them
        require_shapes(own, {"step": torch.zeros(()), "exp_avg": learnt[number], "exp_avg_sq": learnt[number]})
    net.load_state_dict(read(found.net))
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    torch.set_rng_state(random["cpu"])
    device = learnt[0].device
    if device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"])
    return found.memory, {name: value.to(device) for name, value in best.items()}
