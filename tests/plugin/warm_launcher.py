"""Stands where Python is expected: has a warm process run modules and pytest-xdist's workers; hands on the rest.

Runs without site-packages, in a few milliseconds: it imports what is in C alone. Whoever kills it kills the process
that it stands for.
"""

import _signal
import _socket
import marshal
import os
import sys

START = (
    "PYTHON",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TORCHDYNAMO_",
    "PYTORCH",
    "ATEN_",
    "LD_",
    "MALLOC_",
    "CUDA_",
)
"""Variables that begin so are heeded when Python starts or PyTorch is imported: too late in a warm process."""
PROGRAM = "forking.py"
"""The one program that runs warm by its path: it imports PyTorch, and an A/B comparison starts one for every round."""
COMPILER_START = (*START, "TRITON_")
"""The same where PyTorch's compiler has been imported, which imports Triton."""
LATER = ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Of these, what a warm process can still heed. PyTorch's compiler sets its folder itself where it first compiles:
were it heeded here, all stories that come after such a test in its process would start Python anew."""


def main(python: str, executable: str, address: str, start: tuple[str, ...], started_with: dict[str, str]) -> None:
    """Have the command run, and end with the status that it ended with."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["-IS"]:  # as this process was started itself
        sys.argv = arguments[1:]
        with open(sys.argv[0]) as file:
            return exec(compile(file.read(), sys.argv[0], "exec"), {"__name__": "__main__", "__file__": sys.argv[0]})
    heeded = {name: value for name, value in os.environ.items() if name.startswith(start) and name not in LATER}
    is_module = bool(arguments) and arguments[0].startswith("-m")
    is_code = len(arguments) == 3 and arguments[:2] == ["-u", "-c"]
    is_program = bool(arguments) and os.path.basename(arguments[0]) == PROGRAM
    if not (is_module or is_code or is_program) or heeded != started_with:
        os.execv(python, [python, *arguments])

    files = [0, 1, 2]
    for number in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        try:
            if number > 2 and os.get_inheritable(number):
                files.append(number)
        except OSError:  # the listing's own
            pass
    request = {
        "executable": executable,
        "arguments": arguments,
        "code": arguments[2] if is_code else None,
        "program": arguments[0] if is_program else None,
        "module": arguments if is_program else [*filter(None, [arguments[0][2:]]), *arguments[1:]],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "files": files,
    }
    said, numbers = marshal.dumps(request), b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(address)
    server.sendmsg([len(said).to_bytes(8, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])
    server.sendall(said)
    answer = server.recv(16)
    status = int(answer) if answer else 70  # the server is gone
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
