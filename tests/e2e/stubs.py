"""gRPC stubs, generated here from the proto files: pb (messages), rpc (services) and details (of errors)."""
import pathlib
import sys
import tempfile

import grpc_tools
from grpc_tools import protoc

from harness import ROOT

FOLDER = tempfile.mkdtemp(prefix="spindle-stubs-")
protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"-I{pathlib.Path(grpc_tools.__file__).parent / '_proto'}",
             f"--python_out={FOLDER}", f"--grpc_python_out={FOLDER}",
             str(ROOT / "proto/spindle/v1/inference.proto"), str(ROOT / "proto/google/rpc/error_details.proto")])
sys.path.append(FOLDER)
from google.rpc import error_details_pb2 as details  # noqa: E402,F401
from spindle.v1 import inference_pb2 as pb  # noqa: E402,F401
from spindle.v1 import inference_pb2_grpc as rpc  # noqa: E402,F401


def error_info(error):
    """ErrorInfo of a grpc.RpcError."""
    trailer = dict(error.trailing_metadata())["grpc-status-details-bin"]
    info = details.ErrorInfo()
    assert details.Status.FromString(trailer).details[0].Unpack(info)
    return info
