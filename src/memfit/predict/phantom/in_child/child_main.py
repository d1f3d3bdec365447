"""Child process of the phantom GPU: loads the library, then torch, runs the job, writes a reply.

`python -m memfit.predict.phantom.in_child.child_main REQUEST REPLY`. The library, patches of torch, the user's imports
and crashes stay in here.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path

import msgspec

from memfit.predict.child.bytecode import spool_bytecode
from memfit.predict.phantom.in_child.compiler_processes import use_folder_for_compilers
from memfit.predict.phantom.library.load import PhantomLibrary
from memfit.predict.phantom.messages import PhantomRequest


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

    answer = PhantomRun(request, library).answer()
    draft = Path(reply_path + ".part")
    draft.write_bytes(msgspec.msgpack.encode(answer))
    os.replace(draft, reply_path)
    flush()
    os._exit(0)  # whatever the user's code left running (threads, servers) ends with us


if __name__ == "__main__":
    main()
