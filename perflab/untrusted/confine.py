"""Takes from the process of a stranger's code what it does not need: files, the network, other processes.

Landlock (landlock(7)) limits files, TCP and signals, and seccomp (seccomp(2)) system calls. Neither needs root, and
nothing that the process does later undoes it. ``confine`` comes before the stranger's code is imported, ``narrow``
after it has compiled what it needs. By then the process is the stranger's, so the filter of ``narrow`` lies in sealed
memory (mseal(2)) and no other can be installed: who counts filters from outside knows whether it is there. What this
kernel or machine cannot take away is returned, for the verdict.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import resource
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_DUMPABLE, _SET_SECCOMP, _ADOPT_ORPHANS, _NO_NEW_PRIVILEGES = 4, 22, 36, 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The numbers of Landlock's system calls, the same on every architecture."""
_RULE_OF_PATH, _VERSION = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_REFER, _TRUNCATE, _DEVICE_COMMAND = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_COMMAND
"""The rights that a rule on a file, and not on a folder, may grant."""
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Landlock's rights to files, by the first version that knows them."""
_TCP_SINCE, _SCOPES_SINCE = 4, 6
_NAMELESS_SOCKETS, _SIGNALS = 1, 2

_ALLOW, _REFUSE, _ABSENT, _KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
"""Answers of a filter: run the call, fail with EPERM, fail with ENOSYS, end the process."""
_LOAD, _EQUAL, _ANY_BIT, _ANSWER = 0x20, 0x15, 0x45, 0x06
_CLONE_PARENT, _CLONE_THREAD = 0x00008000, 0x00010000
_MODE_OF_FILTER, _FOR_ALL_THREADS = 1, 1
_CAPABILITIES_3 = 0x20080522
_LARGEST_FILE = 1 << 32

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The architecture's number in a filter, by the machine's name."""
_REFUSED = {
    # ptrace, process_vm_readv, process_vm_writev, pidfd_getfd, kcmp: the memory and files of other processes
    # perf_event_open, bpf, userfaultfd, io_uring_setup: ways around this filter
    # setpriority, sched_setscheduler, sched_setattr: a share of the cores that the rival does not have
    # mount, unshare, setns, chroot: other files under the same names
    # adjtimex, clock_adjtime, settimeofday, clock_settime: the judge's clock
    # socket, shmget, msgget, semget, mq_open: talk with processes outside; a socketpair is left
    # timer_create, mq_notify, inotify_init1, inotify_init: signals that would let a stopped process go
    # chown, fchown, lchown, fchownat, file_setattr; setxattr, removexattr, their l and f, setxattrat, removexattrat:
    # what Landlock leaves of others' files
    # add_key, request_key, keyctl: the kernel's keys, which outlive the process
    "x86_64": (
        *(101, 310, 311, 438, 312, 298, 321, 323, 425, 141, 144, 314, 165, 272, 308, 161, 159, 305, 164, 227),
        *(41, 29, 68, 64, 240, 222, 244, 294, 253, 92, 93, 94, 260, 469, 188, 189, 190, 197, 198, 199, 463, 466),
        *(248, 249, 250),
    ),
    "aarch64": (
        *(117, 270, 271, 438, 272, 241, 280, 282, 425, 140, 119, 274, 40, 97, 268, 51, 171, 266, 170, 112),
        *(198, 194, 186, 190, 180, 107, 184, 26, 55, 54, 469, 5, 6, 7, 14, 15, 16, 463, 466, 217, 218, 219),
    ),
}
_ONLY_ITSELF = {"x86_64": (302, 203), "aarch64": (261, 122)}
"""prlimit64, sched_setaffinity: calls whose first argument is a process, of which 0 is the caller."""
_LATER = {"x86_64": (59, 322, 57, 58, 90, 91, 268, 452, 132, 235, 280, 261), "aarch64": (221, 281, 52, 53, 452, 88)}
"""Calls that compilers need: execve, execveat, fork, vfork; chmod, fchmod, fchmodat, fchmodat2, utime and its like."""
_OF_INODES = {"x86_64": 16, "aarch64": 29}, (0x40086602, 0x401C5820, 0x40806685)
"""ioctl; FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_ENABLE_VERITY, for which reading a file is enough."""
_PRCTL = {"x86_64": 157, "aarch64": 167}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_SEAL = 462
"""The number of mseal, the same on every architecture."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/nix", "/run/opengl-driver")
"""Folders of the system that every program may read."""


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


_narrowing = ctypes.c_void_p()
"""The address of the program that ``narrow`` installs, which ``confine`` has laid out."""


def readable(roots: Iterable[Path], secret: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return paths that together hold all of ``roots`` except what is ``secret``, and folders that may only be listed.

    A folder with something secret in it is replaced by its entries, since Landlock can only allow. Its names are no
    secret: Python finds modules by them.
    """
    hidden = {path.resolve() for path in secret}
    found: list[Path] = []
    listed: list[Path] = []

    def add(path: Path) -> None:
        real = path.resolve()
        if real in hidden or any(one in real.parents for one in hidden):
            return
        if not any(real in one.parents for one in hidden):
            found.append(real)
            return
        listed.append(real)
        with contextlib.suppress(OSError):
            for entry in real.iterdir():
                add(entry)

    for root in roots:
        if root.exists():
            add(root)
    return found, listed


def python_folders() -> list[Path]:
    """Return the folders of this Python, of its packages and of the system, without the import path's first entries."""
    mine = [sys.prefix, sys.base_prefix, sys.exec_prefix]
    return [Path(one) for one in dict.fromkeys([*SYSTEM, *mine])]


def confine(read: Sequence[Path], listed: Sequence[Path], write: Sequence[Path]) -> list[str]:
    """Let this process, and what it starts, only read and run ``read``, list ``listed``, write ``write``; no network.

    Returns:
        What could not be taken away, each a sentence; empty if everything was.
    """
    if sys.platform != "linux":
        return ["the candidate's process is not confined: only Linux can"]
    machine = platform.machine()
    libc = ctypes.CDLL(None, use_errno=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    libc.capset(header, none)  # what root may do beyond the owner of files; without effect for anybody else
    libc.prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)  # so that whatever it starts stays its descendant, and is found
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        return ["the candidate's process is not confined: the kernel refuses PR_SET_NO_NEW_PRIVS"]
    missing = _limit_files(libc, read, listed, write)
    if machine not in _MACHINES:
        return [*missing, f"the candidate's system calls are not filtered: no list of them for {machine}"]
    of_threads = _unless(_CLONE[machine], _ANY_BIT, _CLONE_THREAD)
    _narrowing.value = _laid_out(libc, machine, [*of_threads, *_refusals(_LATER[machine], _REFUSE)])
    is_sealed = not libc.syscall(_SEAL, _narrowing, ctypes.c_size_t(mmap.PAGESIZE), 0)
    if not is_sealed:
        missing.append("the candidate can pretend that it has given up starting programs: this kernel has no mseal")
    by_argument = [
        *_unless(_PRCTL[machine], _EQUAL, _ADOPT_ORPHANS, refuses=True),
        *_unless(_PRCTL[machine], _EQUAL, _DUMPABLE, refuses=True),  # its memory would be closed to the judge
        *_unless(_CLONE[machine], _ANY_BIT, _CLONE_PARENT, refuses=True),  # a child that is nobody's descendant
        *[rule for number in _ONLY_ITSELF[machine] for rule in _unless(number, _EQUAL, 0)],
        *[rule for one in _OF_INODES[1] for rule in _unless(_OF_INODES[0][machine], _EQUAL, one, refuses=True, word=2)],
        *(_only_narrowing(machine, _narrowing.value) if is_sealed else []),
    ]
    # The flags of clone3 are in memory, where a filter cannot look: absent, it makes libraries call clone.
    refused = [*_refusals([_CLONE3], _ABSENT), *_refusals(_REFUSED[machine], _REFUSE)]
    return missing + _install(libc, machine, _laid_out(libc, machine, [*by_argument, *refused]))


def narrow() -> list[str]:
    """Let this process start no more programs and processes; threads stay possible. Returns what is not taken away."""
    if not _narrowing:
        return []  # ``confine`` has said so
    return _install(ctypes.CDLL(None, use_errno=True), platform.machine(), _narrowing.value)


def _unless(number: int, how: int, value: int, *, refuses: bool = False, word: int = 0) -> list[_Instruction]:
    """Return rules that refuse a call unless a word of its arguments compares so with a value; or if, with ``refuses``.

    Words have 32 bits: each argument has two, the lower one first.
    """
    return [
        _Instruction(_EQUAL, 0, 4, number),
        _Instruction(_LOAD, 0, 0, 16 + 4 * word),
        _Instruction(how, int(not refuses), int(refuses), value),
        _Instruction(_ANSWER, 0, 0, _REFUSE),
        _Instruction(_LOAD, 0, 0, 0),
    ]


def _only_narrowing(machine: str, at: int) -> list[_Instruction]:
    """Return rules that refuse every filter except the program at this address, for all threads."""
    words = {0: _MODE_OF_FILTER, 2: _FOR_ALL_THREADS, 4: at & 0xFFFFFFFF, 5: at >> 32}
    of_seccomp = [
        rule for word, value in words.items() for rule in _unless(_SECCOMP[machine], _EQUAL, value, word=word)
    ]
    return [*of_seccomp, *_unless(_PRCTL[machine], _EQUAL, _SET_SECCOMP, refuses=True)]


def _refusals(numbers: Iterable[int], answer: int) -> list[_Instruction]:
    return [
        one for number in numbers for one in (_Instruction(_EQUAL, 0, 1, number), _Instruction(_ANSWER, 0, 0, answer))
    ]


def _laid_out(libc: ctypes.CDLL, machine: str, rules: Sequence[_Instruction]) -> int:
    """Return the address of a program in pages of its own, read-only; calls of another architecture end the process."""
    head = [
        _Instruction(_LOAD, 0, 0, 4),
        _Instruction(_EQUAL, 1, 0, _MACHINES[machine]),
        _Instruction(_ANSWER, 0, 0, _KILL),
        _Instruction(_LOAD, 0, 0, 0),
    ]
    # The x32 calls of x86_64 have a bit of their own, and would pass by other numbers.
    x32 = [_Instruction(0x35, 0, 1, 0x40000000), _Instruction(_ANSWER, 0, 0, _KILL)] if machine == "x86_64" else []
    whole = [*head, *x32, *rules, _Instruction(_ANSWER, 0, 0, _ALLOW)]
    instructions = (_Instruction * len(whole))(*whole)
    size = ctypes.sizeof(_Program) + ctypes.sizeof(instructions)
    libc.mmap.restype = ctypes.c_void_p
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at: int = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, private, -1, ctypes.c_long(0))
    program = _Program(len(whole), at + ctypes.sizeof(_Program))
    ctypes.memmove(at, bytes(program) + bytes(instructions), size)
    libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(size), mmap.PROT_READ)
    return at


def _install(libc: ctypes.CDLL, machine: str, program: int | None) -> list[str]:
    if libc.syscall(_SECCOMP[machine], _MODE_OF_FILTER, _FOR_ALL_THREADS, ctypes.c_void_p(program)):
        return ["the candidate's system calls are not filtered: this kernel refuses seccomp filters"]
    return []


def _limit_files(libc: ctypes.CDLL, read: Sequence[Path], listed: Sequence[Path], write: Sequence[Path]) -> list[str]:
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return ["the candidate can read and write files: this kernel has no Landlock"]
    rights = _RIGHTS[max(one for one in _RIGHTS if one <= version)]
    handled = (ctypes.c_uint64 * 3)(
        rights, 3 if version >= _TCP_SINCE else 0, _NAMELESS_SOCKETS | _SIGNALS if version >= _SCOPES_SINCE else 0
    )
    size = 8 * (3 if version >= _SCOPES_SINCE else 2 if version >= _TCP_SINCE else 1)
    ruleset = libc.syscall(_CREATE_RULESET, handled, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return ["the candidate can read and write files: this kernel refuses a Landlock ruleset"]
    try:
        for path in read:
            _allow(libc, ruleset, path, _EXECUTE | _READ_FILE | _READ_FOLDER, rights)
        for path in listed:
            _allow(libc, ruleset, path, _READ_FOLDER, rights)
        for path in write:
            _allow(libc, ruleset, path, rights & ~_REFER, rights)
        for device in [*map(Path, DEVICES), *Path("/dev").glob("nvidia*")]:
            _allow(libc, ruleset, device, _READ_FILE | _WRITE_FILE | _READ_FOLDER | _DEVICE_COMMAND, rights)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0):
            return ["the candidate can read and write files: this kernel refuses Landlock to this process"]
    finally:
        os.close(ruleset)
    if version < _SCOPES_SINCE:
        return [f"the candidate can send signals to your processes: Landlock {version} does not stop that, 6 does"]
    return []


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int, known: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on this machine
    try:
        is_folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        granted = rights & known if is_folder else rights & known & _OF_FILES
        rule = ctypes.create_string_buffer(granted.to_bytes(8, sys.byteorder) + handle.to_bytes(4, sys.byteorder))
        libc.syscall(_ADD_RULE, ruleset, _RULE_OF_PATH, rule, 0)
    finally:
        os.close(handle)
