"""The conversation between the judge and the process of a candidate: typed messages over the one protocol of all.

    Load -> Ready      the candidate is imported, confined
    Lay -> Ready       tensors are laid over shared memory that the judge has yet to fill, while this process is stopped
    GO -> Finished     the calls; their outputs stay where they are, and the judge reads them from outside
    BACK -> Ready      of a device: the arguments as they are after the calls, in the shared memory
    NARROW -> Ready    no more programs, no more processes
    LOOK -> Looked     one more call, and what ran in it, and in recorded calls before

Every question may be answered by ``Raised``. Nothing that a candidate's process sends is unpickled or run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from perflab.base.data import Data
from perflab.processes.channel import Alive
from perflab.untrusted.records import Ran, Text


class Role(StrEnum):
    """The part that a callable has in a judgement."""

    CANDIDATE = "candidate"
    RIVAL = "rival"
    """The trusted callable that the candidate's time is compared with."""
    CONTROL = "control"
    """A trusted callable that does nothing: what a span costs without work."""


class Entry(Data, frozen=True):
    """The origin of a callable: a module and a name, a text, or a pickle."""

    name: str = ""
    """``package.module:function``; or empty for a pickled callable, in the file that follows ``Load``."""
    source: str = ""
    """The text of a module that defines ``name``; empty: the module is imported."""
    builds: bool = False
    """Whether the name is a class of modules, of which an object is made from the file that follows."""
    compiles: bool = False
    """Whether the object is given to torch.compile."""


PICKLED = Entry()
"""The origin of a callable that is nothing else than its pickle."""


class Rights(Data, frozen=True):
    """The files that the process of a candidate has, besides a folder of its own."""

    read: list[str] = []
    """Files and folders that it may read and run."""
    listed: list[str] = []
    """Folders of which it may read the names."""
    path: list[str] = []
    """Entries for the beginning of the import path."""


class Load(Data, frozen=True, tag=True):
    """Confine the process, and import the callable. Descriptors of shared memory and of the pickle follow."""

    role: Role
    entry: Entry
    device: str
    shared_bytes: int
    folder: str
    """The one folder in which the process may write."""
    rights: Rights


Size = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
Dimensions = Annotated[list[Size], msgspec.Meta(max_length=64)]


class TensorAt(Data, frozen=True):
    """A tensor in shared memory, or in the memory of the candidate's process: bytes, and how they are read."""

    at: Annotated[int, msgspec.Meta(ge=0, le=2**62)]
    """The offset of its storage in the shared memory; of an output, the storage's address in the process."""
    size: Size
    """The storage's size in bytes."""
    dtype: Text
    shape: Dimensions
    stride: Dimensions
    offset: Size
    """The tensor's offset in its storage, in elements."""
    needs_gradient: bool = False
    in_arguments: bool = False
    """Whether an output lies in an argument's memory, by the process's own account: on a device only it knows."""
    kind: Text = ""
    """The type, layout and device of an output that is no strided ``torch.Tensor`` with memory; else empty."""


class Manner(Data, frozen=True):
    """How the calls of a span are made."""

    gradients: bool = False
    """Whether floating arguments require gradients."""
    backward: list[int] = []
    """The numbers of the outputs, of the calls before, that get upstream gradients. The sets are these gradients then,
    one set for each call before, and the outputs are the gradients of its arguments."""
    drops: bool = True
    """Whether outputs of earlier calls may be freed; those that ``backward`` goes through never are."""
    poisons: bool = False
    """Whether memory that the calls allocate holds NaN until it is written; that takes time."""
    records: bool = False
    """Whether PyTorch's profiler records the calls, until the next step LOOK."""


PLAINLY = Manner()


class Lay(Data, frozen=True, tag=True):
    """Lay tensors over the shared memory for the next step GO: one set of arguments for each call."""

    sets: list[list[TensorAt]]
    how: Manner
    shared_bytes: int = 0
    """The size of a larger shared memory, whose descriptor follows; 0: the one there is."""


class Step(StrEnum):
    """A step that needs no further words."""

    GO = "go"
    BACK = "back"
    NARROW = "narrow"
    LOOK = "look"


class Do(Data, frozen=True, tag=True):
    """Question: take one of the steps that need no more words."""

    step: Step


class Ready(Data, frozen=True, tag=True):
    """Answer: done."""

    missing: Annotated[list[Text], msgspec.Meta(max_length=16)] = []
    """Rights that could not be taken away from the process, each a sentence."""


class Finished(Data, frozen=True, tag=True):
    """Answer: the calls were made, and the device is idle."""

    own_ns: Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
    """The time of the calls by the candidate's own clock, in nanoseconds: evidence, and nothing else."""
    outputs: list[list[TensorAt | None]]


class Looked(Ran, frozen=True, tag=True):
    """Answer: what one call ran."""


class Raised(Data, frozen=True, tag=True):
    """Answer: the candidate raised."""

    kind: Text
    module: Text
    """The class of the error, and the module that defines it."""
    text: Text
    traceback: Text
    out_of_memory: bool = False
    of_compiler: bool = False
    """Whether a compiler's error is among its causes, by their classes."""


Questions = Load | Lay | Do
Answers = Ready | Finished | Looked | Raised
QUESTIONS: msgspec.json.Decoder[Questions] = msgspec.json.Decoder(Questions)
ANSWERS: msgspec.json.Decoder[Answers | Alive] = msgspec.json.Decoder(Answers | Alive)
