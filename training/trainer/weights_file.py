"""Tensors as the bytes of a ``.pt``: PyTorch writes them; this module reads them without calling anything that they
name.

A file from elsewhere may unpack to endless zeros, or describe tensors that reach beyond their own bytes. Only names,
kinds of number and shapes are taken from a file's pickle; each tensor's values are the bytes of that tensor's own
member of the archive.
"""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

N = TypeVar("N", bound=nn.Module)
KINDS = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "LongStorage": "<i8", "ByteStorage": "u1"}
# The steps of a pickle of tensors. Others take the memory that the pickle announces, as the reader in C always does.
STEPS = b"\x80}qr(XcJKM\x8at\x85\x86\x87)\x89RhjQsu."


class _Descriptions(pickle._Unpickler):  # noqa: SLF001
    """Reads a pickle of tensors without making any: each tensor becomes the tuple of the arguments that would make
    it."""

    dispatch = {step: pickle._Unpickler.dispatch[step] for step in STEPS}  # noqa: RUF012, SLF001

    def find_class(self, module: str, name: str) -> object:
        if module == "torch" and name in KINDS:
            return name
        known = {"torch._utils._rebuild_tensor_v2": lambda *given: given, "collections.OrderedDict": dict}
        if (found := known.get(f"{module}.{name}")) is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return found

    def persistent_load(self, pid: object) -> object:
        return pid


def read(data: bytes) -> dict[str, Tensor]:
    """Return the tensors by name.

    Raises UnpicklingError for bytes that are no tensors, and ValueError, TypeError and their like for damaged ones.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read(archive, len(data))
    except (zipfile.BadZipFile, struct.error, LookupError) as error:
        raise pickle.UnpicklingError(str(error)) from None


def _read(archive: zipfile.ZipFile, left: int) -> dict[str, Tensor]:
    """Read the tensors of an archive of ``left`` bytes. Raises ValueError if a member is compressed, or if those read
    are larger than the archive."""
    root = archive.namelist()[0].partition("/")[0]

    def stored(name: str) -> bytes:
        nonlocal left
        member = archive.getinfo(f"{root}/{name}")
        left -= member.file_size
        if member.compress_type != zipfile.ZIP_STORED or left < 0:
            raise ValueError("its tensors are compressed, or larger than the file")
        return archive.read(member)

    found = {}
    # Each is written contiguous and alone, so that offset and strides need not be read.
    for name, ((_, kind, key, *_), _, shape, *_) in _Descriptions(io.BytesIO(stored("data.pkl"))).load().items():
        values = np.frombuffer(stored(f"data/{key}"), KINDS[kind]).reshape(shape)
        found[name] = torch.from_numpy(values.copy())
    return found


def written(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the tensors as the bytes of a ``.pt``, made in memory: a file's name would be part of its bytes."""
    state = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def restored(make: Callable[[], N], tensors: Mapping[str, Tensor]) -> N:
    """Return the network that ``make`` makes, with these weights, on the CPU.

    Raises ValueError for tensors of another network, before the network takes any memory.
    """
    with torch.device("meta"):
        require_shapes(tensors, make().state_dict())
    net = make()
    net.load_state_dict(dict(tensors))
    net.eval()
    return net


def require_shapes(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless these tensors have the names and shapes of ``like``."""
    if {name: one.shape for name, one in tensors.items()} != {name: one.shape for name, one in like.items()}:
        raise ValueError("its tensors have other names or shapes than those of this network")
