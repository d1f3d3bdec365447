"""Child process of the phantom GPU: loads the library, then torch, runs the job, writes a reply.

`python -m memfit.predict.phantom.in_child.child_main REQUEST REPLY`. The library, patches of torch, the user's imports
and crashes stay in here.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
from pathlib import Path

import msgspec

from memfit.predict.child.bytecode import spool_bytecode
from memfit.predict.phantom.in_child.compiler_processes import use_folder_for_compilers
from memfit.predict.phantom.library.load import PhantomLibrary
from memfit.predict.phantom.messages import PhantomRequest
from memfit.predict.sandbox.read_only import forbid_writing_outside, only_python_guarded


def main() -> None:
    """Answer the request named on the command line."""
    request_path, reply_path = sys.argv[1:3]  # the script will see other arguments
    faulthandler.enable()  # a native crash leaves the Python stack in the output
    request = msgspec.json.decode(Path(request_path).read_bytes(), type=PhantomRequest)
    spool_bytecode(request.report_folder)
    use_folder_for_compilers(request.scratch_folder)
    if request.options.alloc_conf:
        os.environ["PYTORCH_ALLOC_CONF"] = os.environ["PYTORCH_CUDA_ALLOC_CONF"] = request.options.alloc_conf
    library = PhantomLibrary(Path(request.library_folder), request.gpu, request.total_bytes, request.context_bytes)
    if request.cudnn_folder:
        library.use_cudnn(Path(request.cudnn_folder))
    from memfit.predict.phantom.in_child.run import PhantomRun, flush

    run = PhantomRun(request, library)
    if reason := _keep_from_writing(request):
        run.note("files", only_python_guarded(reason))
    answer = run.answer()
    draft = Path(reply_path + ".part")
    draft.write_bytes(msgspec.msgpack.encode(answer))
    os.replace(draft, reply_path)
    flush()
    os._exit(0)  # whatever the user's code left running (threads, servers) ends with us


def _keep_from_writing(request: PhantomRequest) -> str:
    """From now on this process, and compilers that it starts, write to the request's folders; why not, or nothing."""
    os.environ["TMPDIR"] = tempfile.tempdir = request.scratch_folder
    os.environ["PYTORCH_KERNEL_CACHE_PATH"] = request.scratch_folder  # kernels that torch compiles by itself
    return forbid_writing_outside([os.path.realpath(request.report_folder)])


if __name__ == "__main__":
    main()
